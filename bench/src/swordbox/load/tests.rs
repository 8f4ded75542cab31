use super::*;
use rocev2::{Opcode, Packet};
use switch::memory::run_frame;

/// Plays a load three times: each request has to reach the server as a WRITE, and each client has to get its
/// response.
fn assert_plays(load: Load) {
    let (frames, mut replay) = load.make();
    assert_eq!(frames.len(), load.frames());
    let watch = replay.watch();
    let (mut writes, mut responses) = (0, std::collections::HashMap::<_, u32>::new());
    for pass in 0..3 {
        for (n, frame) in frames.iter().enumerate() {
            let (_, out) = run_frame(&mut replay, frame, PortId(0), Nanos(n as u64));
            for (frame, _) in out {
                let packet = Packet::parse(&frame).expect("a packet");
                assert!(packet.verify_icrc());
                let bth = packet.bth();
                match bth.opcode() {
                    Opcode::RC_WRITE_ONLY => writes += 1,
                    Opcode::RC_ATOMIC_ACKNOWLEDGE if load.verb == Verb::Cas => {
                        *responses.entry((bth.dest_qp(), pass, bth.psn())).or_default() += 1;
                    }
                    Opcode::RC_ACKNOWLEDGE if load.verb == Verb::Write => {
                        *responses.entry((bth.dest_qp(), pass, bth.psn())).or_default() += 1;
                    }
                    other => panic!("{other}"),
                }
            }
        }
    }
    let operations = 3 * load.operations();
    assert_eq!(writes, operations);
    assert_eq!(responses.len(), operations);
    assert!(responses.values().all(|n| *n == 1));
    let tally = watch.tally();
    assert_eq!(tally.check(&load, 1, 3 * load.frames() as u64), Ok(()));
    assert_eq!((tally.remapped, tally.acks), (operations as u64, operations as u64));
    assert_eq!((tally.wrong, tally.resent), (0, 0));
}

const LOAD: Load = Load { verb: Verb::Cas, connections: 256, requests: 4, lines: 16, covered: 1 };

#[test]
fn every_pass_has_new_operations() {
    assert_plays(LOAD);
    assert_plays(Load { verb: Verb::Write, ..LOAD });
}

#[test]
fn one_acknowledgement_covers_several_operations() {
    for covered in [2, 8, 32] {
        assert_plays(Load { covered, ..LOAD });
    }
}

#[test]
fn every_client_sends_one_request() {
    assert_plays(Load { connections: 2048, requests: 1, ..LOAD });
}

#[test]
fn a_tally_that_differs_from_the_load_is_an_error() {
    let tally = Tally { remapped: 100_000, decided: 100_000, acks: 100_000, ..Tally::default() };
    assert_eq!(tally.check(&LOAD, 1, 200_000), Ok(()));
    assert!(tally.check(&LOAD, 1, 300_000).is_err());
    assert!(Tally { decided: 0, ..tally }.check(&LOAD, 1, 200_000).is_err());
    assert!(Tally { wrong: 1, ..tally }.check(&LOAD, 1, 200_000).is_err());
    assert!(Tally { resent: 10_000, ..tally }.check(&LOAD, 1, 200_000).is_err());
}
