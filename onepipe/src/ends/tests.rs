use super::*;
use crate::header::OnePipeOpcode;
use rocev2::Psn;
use switch::Rng;

const DEAD_AFTER: u64 = 10;

/// Returns a beacon with this barrier, whose sender has removed an input.
fn beacon(barrier: Option<u64>, removed: bool) -> OnePipe {
    let mut header = OnePipe::new(OnePipeOpcode::BEACON, Timestamp::new(1), Psn::ZERO);
    header.set_barrier(barrier.map(Timestamp::new));
    header.set_removed(removed);
    header
}

fn last_word() -> OnePipe {
    let mut header = beacon(None, false);
    header.set_nothing_follows(true);
    header
}

/// Returns the barrier of the link after a beacon.
fn taken(ends: &mut Ends, end: usize, barrier: u64, removed: bool, tick: u64) -> Option<u64> {
    let word = ends.on_beacon(end, beacon(Some(barrier), removed), tick).expect("not stale");
    assert!(!word.nothing_follows());
    word.barrier().map(Timestamp::nanos)
}

#[test]
fn maximum_counts_and_one_end_is_enough() {
    let mut ends = Ends::new(DEAD_AFTER, None);
    assert_eq!(taken(&mut ends, 0, 10, false, 1), Some(10));
    assert_eq!(taken(&mut ends, 1, 8, false, 1), Some(10), "the slower end's word is not stale");
    assert_eq!(taken(&mut ends, 1, 9, false, 2), Some(10));
    assert_eq!(ends.on_beacon(1, beacon(Some(8), false), 2), Err(Stale), "below its own last word");
    assert_eq!(taken(&mut ends, 1, 20, false, 99), Some(20), "the other end is dead");
    assert_eq!(taken(&mut ends, 0, 5, false, 99), Some(20), "it has restarted");
    let starting = ends.on_beacon(0, beacon(None, false), 99).map(|word| word.barrier());
    assert_eq!(starting, Ok(None), "it is alive, and states nothing");
}

#[test]
fn end_that_removed_an_input_counts_only_without_the_other() {
    let mut ends = Ends::new(DEAD_AFTER, None);
    assert_eq!(taken(&mut ends, 0, 10, false, 1), Some(10));
    assert_eq!(taken(&mut ends, 1, 90, true, 1), None);
    assert_eq!(taken(&mut ends, 0, 11, false, 2), Some(11));
    assert_eq!(taken(&mut ends, 0, 12, true, 3), Some(12), "both have removed one: the minimum, at once");
    assert_eq!(taken(&mut ends, 1, 91, true, 4), Some(12));
    assert!(!ends.is_doubted(), "all nodes that hear both know the same");
    assert_eq!(taken(&mut ends, 1, 92, true, 14), Some(92), "the other end is dead");
    assert!(ends.is_doubted());
    assert_eq!(taken(&mut ends, 0, 50, false, 15), Some(50));
    assert!(ends.is_doubted(), "it has not caught up with what was taken");
    assert_eq!(taken(&mut ends, 0, 92, false, 16), Some(92));
    assert!(!ends.is_doubted());
    assert_eq!(taken(&mut ends, 1, 92, false, 16), Some(92), "the input has returned");
}

#[test]
fn nothing_follows_if_all_ends_that_are_heard_announce_it() {
    let mut ends = Ends::new(DEAD_AFTER, None);
    let mut announce = |end, tick| {
        let word = ends.on_beacon(end, last_word(), tick).expect("not stale");
        assert_eq!(word.barrier(), None);
        word.nothing_follows()
    };
    assert!(announce(0, 1), "the only one");
    assert_eq!(taken(&mut ends, 1, 5, false, 2), Some(5), "the other one hears an input");
    let mut announce = |end, tick| ends.on_beacon(end, last_word(), tick).unwrap().nothing_follows();
    assert!(!announce(0, 3));
    assert!(announce(1, 4) && announce(0, 5));
    assert_eq!(taken(&mut ends, 0, 7, false, 6), Some(7));
}

/// Two ends with three inputs that rise, stand still, die and return. Inputs are heard by one end or both, and
/// each end delays what it hears and is itself heard or not. Returns the number of words of the link that were
/// above an input that one of the ends heard still had, and the longest time for which the link's barrier was
/// more than the delays behind while no input was removed.
fn run(seed: u64, bug: Option<Bug>) -> (u64, u64) {
    let mut rng = Rng::new(seed);
    let mut link = Ends::new(DEAD_AFTER, bug);
    // By end: register of each input, tick at which it was heard, whether it is out; output
    let mut registers = [[(1u64, 0u64, false); 3]; 2];
    let (mut outputs, mut heard_at) = ([0u64; 2], [0u64; 2]);
    let (mut deaf, mut cut) = ([[false; 3]; 2], [false; 2]);
    let (mut wrong, mut stall, mut behind_since, mut register) = (0, 0, 0, 0);
    for tick in 1..3_000 {
        if rng.below(60) == 0 {
            // One fault at a time: an end that is not heard, or is deaf for one input.
            (deaf, cut) = ([[false; 3]; 2], [false; 2]);
            match rng.below(3) {
                0 => cut[rng.below(2) as usize] = true,
                1 => deaf[rng.below(2) as usize][rng.below(3) as usize] = true,
                _ => {}
            }
        }
        for end in 0..2 {
            for input in 0..3 {
                let (value, at, out) = &mut registers[end][input];
                if !deaf[end][input] {
                    (*value, *at) = (tick * 10 - rng.below(10), tick);
                    *out &= *value < outputs[end];
                } else if tick - *at > DEAD_AFTER {
                    *out = true;
                }
            }
            let present = |of: &[(u64, u64, bool); 3]| {
                of.iter().filter(|&&(_, at, out)| !out || tick - at <= DEAD_AFTER).map(|of| of.0).min()
            };
            outputs[end] = outputs[end].max(present(&registers[end]).unwrap_or(0));
            let removed = registers[end].iter().any(|&(.., out)| out);
            if cut[end] {
                continue;
            }
            heard_at[end] = tick;
            let Ok(word) = link.on_beacon(end, beacon(Some(outputs[end]), removed), tick) else { continue };
            register = word.barrier().map_or(register, |barrier| barrier.nanos().max(register));
        }
        // What follows on each input is at least its value at the end that hears it best.
        let hears = |end: usize| tick - heard_at[end] <= DEAD_AFTER;
        let bound = (0..3).filter_map(|input| {
            let of = |end: usize| registers[end][input].0;
            let kept = (0..2).any(|end| hears(end) && !registers[end][input].2);
            kept.then(|| of(0).max(of(1)))
        });
        let bound = bound.min().unwrap_or(u64::MAX);
        wrong += u64::from(register > bound && !link.is_doubted());
        behind_since = if register + 30 < tick * 10 { behind_since + 1 } else { 0 };
        stall = stall.max(behind_since);
    }
    (wrong, stall)
}

#[test]
fn deaf_and_silent_ends_neither_raise_nor_stop_the_link() {
    for seed in 0..200 {
        let (wrong, stall) = run(seed, None);
        assert_eq!(wrong, 0, "seed {seed}");
        // A fault after another one: an end is silent or deaf until it has caught up.
        assert!(stall <= 2 * DEAD_AFTER + 2, "seed {seed}: {stall}");
    }
}

#[cfg(debug_assertions)]
#[test]
fn planted_bugs_of_ends_are_found() {
    let runs = |bug| (0..50).map(move |seed| run(seed, Some(bug)));
    assert!(runs(Bug::RemovedIgnored).any(|(wrong, _)| wrong > 0));
    assert!(runs(Bug::MinimumOfEnds).any(|(_, stall)| stall > 2 * DEAD_AFTER + 2));
}
