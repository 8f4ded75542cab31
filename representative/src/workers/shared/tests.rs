use super::*;
use loom::sync::atomic::AtomicU64 as Shared;
use loom::sync::{Arc, Mutex};
use loom::thread;

/// Frames between two workers: their timestamps, in order
type Ring = Arc<Mutex<Vec<u64>>>;

fn live(at: u64) -> u64 {
    Published::Live(Timestamp::new(at)).encode(false)
}

/// Returns the barrier of a word; 0 if there is none.
fn barrier(word: u64) -> u64 {
    match Published::decode(word).0 {
        Published::Live(at) => at.nanos(),
        _ => 0,
    }
}

#[test]
fn words_are_decoded_as_they_were_encoded() {
    let at = Timestamp::new((1 << 48) - 1);
    for state in [
        Published::Awaited,
        Published::Live(at),
        Published::Live(Timestamp::new(0)),
        Published::Left,
        Published::Lost,
        Published::Hold(1),
        Published::Hold((1 << 48) - 1),
    ] {
        for misses in [false, true] {
            assert_eq!(Published::decode(state.encode(misses)), (state, misses));
        }
    }
    for carried in
        [Carried::Nothing, Carried::Barrier(Timestamp::new(0)), Carried::Barrier(at), Carried::Gone]
    {
        assert_eq!(Carried::decode(carried.encode()), carried);
    }
}

/// Worker 0 receives two frames and publishes that those that follow are later; worker 1 takes frames from the ring and
/// raises its barrier. Explores every interleaving, and asserts that no frame is taken below the barrier.
fn barrier_passes_no_frame(
    receive: fn(&SharedWords<Shared>, &Ring, u64),
    turn: fn(&SharedWords<Shared>, &Ring, &mut u64),
) {
    loom::model(move || {
        let shared = Arc::new(SharedWords::<Shared>::empty(2, 0));
        let ring = Ring::default();
        let receiver = {
            let (shared, ring) = (shared.clone(), ring.clone());
            thread::spawn(move || [10, 20].into_iter().for_each(|at| receive(&shared, &ring, at)))
        };
        let mut raised = 0;
        turn(&shared, &ring, &mut raised);
        turn(&shared, &ring, &mut raised);
        receiver.join().unwrap();
        turn(&shared, &ring, &mut raised);
        assert_eq!(raised, 21);
    });
}

fn push_then_publish(shared: &SharedWords<Shared>, ring: &Ring, at: u64) {
    ring.lock().unwrap().push(at);
    shared.publish(0, UP, live(at + 1));
}

/// Sends the frames of the ring.
fn drain(ring: &Ring, raised: u64) {
    for at in ring.lock().unwrap().drain(..) {
        assert!(at >= raised, "a frame is below the barrier");
    }
}

fn drain_then_adopt(shared: &SharedWords<Shared>, ring: &Ring, raised: &mut u64) {
    let snapshot = shared.barrier(0, UP);
    drain(ring, *raised);
    *raised = barrier(snapshot);
}

#[test]
fn barriers_that_are_adopted_behind_the_frames_pass_none() {
    barrier_passes_no_frame(push_then_publish, drain_then_adopt);
}

#[test]
#[should_panic(expected = "a frame is below the barrier")]
fn planted_publication_before_the_push_is_found() {
    // The frame that the barrier bounds is put into the ring afterwards.
    let receive = |shared: &SharedWords<Shared>, ring: &Ring, at: u64| {
        shared.publish(0, UP, live(at + 1));
        ring.lock().unwrap().push(at);
    };
    barrier_passes_no_frame(receive, drain_then_adopt);
}

#[test]
#[should_panic(expected = "a frame is below the barrier")]
fn planted_adoption_before_the_drain_is_found() {
    let receive = |shared: &SharedWords<Shared>, ring: &Ring, at: u64| {
        ring.lock().unwrap().push(at);
        shared.publish(0, UP, live(at + 1));
    };
    barrier_passes_no_frame(receive, |shared, ring, raised| {
        *raised = barrier(shared.barrier(0, UP));
        drain(ring, *raised);
    });
}

/// A snapshot that is taken behind the drain may be of frames that the ring did not have then.
#[test]
#[should_panic(expected = "a frame is below the barrier")]
fn planted_snapshot_behind_the_drain_is_found() {
    let receive = |shared: &SharedWords<Shared>, ring: &Ring, at: u64| {
        ring.lock().unwrap().push(at);
        shared.publish(0, UP, live(at + 1));
    };
    barrier_passes_no_frame(receive, |shared, ring, raised| {
        drain(ring, *raised);
        *raised = barrier(shared.barrier(0, UP));
    });
}

/// Worker 1 sends barriers that rise until it sees a hold, which `answer` answers with the barrier that it has reached.
/// Worker 0 holds, and asserts that a link which then begins is not below what worker 1 has sent, or sends later.
fn link_begins_above_all_outputs(answer: fn(&SharedWords<Shared>, Timestamp, u64)) {
    loom::model(move || {
        let shared = Arc::new(SharedWords::<Shared>::empty(2, 0));
        let sent = Arc::new(Mutex::new(0));
        let other = {
            let (shared, sent) = (shared.clone(), sent.clone());
            thread::spawn(move || {
                for at in 1..3 {
                    if let (Published::Hold(number), _) = Published::decode(shared.barrier(0, UP)) {
                        let reached = *sent.lock().unwrap();
                        answer(&shared, Timestamp::new(reached), number);
                        return;
                    }
                    *sent.lock().unwrap() = at;
                }
            })
        };
        shared.publish(0, UP, Published::Hold(1).encode(false));
        let begin = shared
            .all_have_seen(0, UP, 1)
            .then(|| shared.outputs(UP).map(Timestamp::nanos).max().unwrap_or_default());
        other.join().unwrap();
        let sent = *sent.lock().unwrap();
        assert!(begin.is_none_or(|begin| begin >= sent), "a link begins below what was sent");
    });
}

#[test]
fn links_begin_above_what_all_workers_have_sent() {
    link_begins_above_all_outputs(|shared, reached, number| {
        shared.announce(1, [Some(reached), None]);
        shared.answer(1, 0, UP, number);
    });
}

#[test]
#[should_panic(expected = "a link begins below what was sent")]
fn planted_answer_before_the_announcement_is_found() {
    link_begins_above_all_outputs(|shared, reached, number| {
        shared.answer(1, 0, UP, number);
        shared.announce(1, [Some(reached), None]);
    });
}
