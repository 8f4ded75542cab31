use super::*;
use crate::config::{BeaconForm, End, Incarnation as Place, Pace, Registers, Side};
use crate::function::Representative;
use core::net::Ipv4Addr;
use onepipe::OnePipe;
use onepipe::control::Source;
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use switch::{Function, PortId, forward};

const BOOT: Boot = [3; 16];
const OWN: Incarnation = Incarnation(9);
const RETRY: Nanos = Nanos(1_000);

/// Returns the configuration of a representative with two links below and one above.
fn representative() -> config::Config {
    let link = |(n, side): (u8, Side)| Link {
        side,
        port: PortId(0),
        mac: MacAddr([2, 0, 0, 0, 0, n]),
        address: Ipv4Addr::new(10, 0, 0, n).into(),
        detour: Vec::new(),
        qpn: Qpn::new(0x30),
        beacon: BeaconForm::Datagram,
        standby: None,
    };
    config::Config {
        forward: forward::Config::bridge(1, 16),
        incarnation: Place::Host,
        pace: Pace::Passing,
        mac: MacAddr([2; 6]),
        addresses: vec![Ipv4Addr::new(10, 0, 0, 9).into()],
        qkey: OnePipe::QKEY,
        first_qp: Qpn::new(0x100),
        registers: Registers { va: 0, rkey: 1 },
        beacon_interval: Nanos(3_000),
        dead_after_intervals: 10,
        fail_after_intervals: Some(10),
        join_window: Nanos(100_000),
        evict_after: Nanos::ZERO,
        layer: 1,
        ahead_max: Nanos::from_millis(1),
        clock_source: onepipe::ClockSource::Host,
        clock: Timestamp::new(1_000_000),
        traffic_class: 0,
        links: [(1, Side::Below), (2, Side::Below), (3, Side::Above)].map(link).into(),
        declares: true,
        bug: None,
    }
}

fn keeper() -> Keeper {
    let config = Config { switch: 4, seat: 1, boot: BOOT, topology: 77, retry_after: RETRY };
    Keeper::new(config, representative())
}

fn sent(keeper: &mut Keeper) -> Vec<Envelope> {
    core::iter::from_fn(|| keeper.poll_envelope()).collect()
}

fn commands(keeper: &mut Keeper) -> Vec<Command> {
    core::iter::from_fn(|| keeper.poll_command()).collect()
}

fn receive(keeper: &mut Keeper, term: u64, incarnation: Incarnation, message: Message) {
    keeper.on_envelope(Envelope { term, incarnation, message }, Nanos(5));
}

fn welcome() -> Message {
    Message::WelcomeRep { boot: BOOT, incarnation: OWN, first_qp: Qpn::new(0x7000) }
}

/// Returns a keeper that has an incarnation and given it to its worker.
fn welcomed() -> Keeper {
    let mut keeper = keeper();
    keeper.on_connected(Nanos(1));
    sent(&mut keeper);
    receive(&mut keeper, 2, Incarnation(0), welcome());
    assert!(matches!(commands(&mut keeper)[..], [Command::Introduce(_)]));
    keeper
}

fn setting(link: u16, sources: &[(u8, u32)]) -> LinkSetting {
    let source = |&(n, qpn): &(u8, u32)| Source {
        address: address(Ipv4Addr::new(10, 0, 0, n).into()),
        qpn: Qpn::new(qpn),
    };
    let sources = sources.iter().map(source).collect();
    LinkSetting { link, counted: true, frozen: false, muted: false, introduced: true, sources }
}

fn configure(version: u64) -> Message {
    let links = vec![setting(0, &[(1, 0x51)]), setting(1, &[(2, 0x52)]), setting(LOOPBACK, &[])];
    Message::Configure { version, floors: [None; 2], links }
}

/// Returns the versions of the states for the worker.
fn versions(keeper: &mut Keeper) -> Vec<u64> {
    let version = |command| match command {
        Command::Configure(state) => state.version,
        other => panic!("{other:?}"),
    };
    commands(keeper).into_iter().map(version).collect()
}

fn value(link: u16, caught: bool, silent: bool) -> LinkValue {
    LinkValue { link, caught, silent, quiet: silent.into(), raw: None }
}

#[test]
fn registration_is_repeated_until_it_is_answered() {
    let mut keeper = keeper();
    assert_eq!((keeper.next_timer(), sent(&mut keeper).len()), (None, 0), "nothing is connected");
    keeper.on_connected(Nanos(10));
    let address = address(Ipv4Addr::new(10, 0, 0, 9).into());
    let register = Message::RegisterRep { switch: 4, seat: 1, boot: BOOT, address, topology: 77 };
    let register = Envelope { term: 0, incarnation: Incarnation(0), message: register };
    assert_eq!(sent(&mut keeper), core::slice::from_ref(&register));
    for (at, next) in [(1_010, 3_010), (3_010, 7_010), (7_010, 15_010)] {
        keeper.on_timer(Nanos(at - 1));
        assert!(sent(&mut keeper).is_empty());
        keeper.on_timer(Nanos(at));
        assert_eq!((sent(&mut keeper), keeper.next_timer()), (vec![register.clone()], Some(Nanos(next))));
    }
    keeper.on_connected(Nanos(8_000));
    assert_eq!((sent(&mut keeper).len(), keeper.next_timer()), (1, Some(Nanos(9_000))));
    receive(&mut keeper, 2, Incarnation(0), Message::Refused { reason: Reason::OtherTopology });
    assert_eq!(keeper.status().waits, Some(Reason::OtherTopology));
    receive(&mut keeper, 2, Incarnation(0), welcome());
    assert_eq!((keeper.next_timer(), keeper.status().incarnation), (None, OWN));
    assert_eq!((keeper.status().waits, keeper.status().term), (None, 2));
}

#[test]
fn welcome_of_another_start_is_refused() {
    let mut keeper = keeper();
    keeper.on_connected(Nanos(1));
    let other = |boot, incarnation, first_qp| Message::WelcomeRep { boot, incarnation, first_qp };
    for message in [
        other([4; 16], OWN, Qpn::new(0x7000)),
        other(BOOT, Incarnation(0), Qpn::new(0x7000)),
        other(BOOT, OWN, Qpn::new(0xff_fffe)),
    ] {
        receive(&mut keeper, 2, Incarnation(0), message);
    }
    assert_eq!((keeper.refused().other_incarnation, keeper.poll_command().is_none()), (3, true));
    receive(&mut keeper, 2, Incarnation(0), welcome());
    assert_eq!(commands(&mut keeper).len(), 1);
    receive(&mut keeper, 2, OWN, welcome());
    receive(&mut keeper, 2, Incarnation(10), other(BOOT, Incarnation(10), Qpn::new(0x8000)));
    assert_eq!((commands(&mut keeper).len(), keeper.status().incarnation), (0, OWN));
    assert_eq!(keeper.refused().other_incarnation, 4);
}

#[test]
fn old_terms_versions_and_other_incarnations_are_refused() {
    let mut keeper = keeper();
    keeper.on_connected(Nanos(1));
    receive(&mut keeper, 2, Incarnation(0), configure(1));
    assert_eq!((commands(&mut keeper).len(), keeper.refused().other_incarnation), (0, 1));
    let mut keeper = welcomed();
    receive(&mut keeper, 2, Incarnation(8), configure(1));
    receive(&mut keeper, 1, OWN, configure(9));
    assert_eq!(versions(&mut keeper), []);
    receive(&mut keeper, 3, OWN, configure(5));
    receive(&mut keeper, 3, OWN, configure(4));
    assert_eq!(versions(&mut keeper), [5]);
    receive(&mut keeper, 3, OWN, configure(5));
    assert_eq!(versions(&mut keeper), [5], "it is answered again");
    receive(&mut keeper, 2, OWN, configure(6));
    receive(&mut keeper, 3, OWN, Message::Progress {});
    let unknown = Message::Configure { version: 7, floors: [None; 2], links: vec![setting(3, &[])] };
    receive(&mut keeper, 3, OWN, unknown);
    let refused =
        Refused { old_term: 2, other_incarnation: 1, old_version: 1, unknown_link: 1, unexpected: 1 };
    assert_eq!((versions(&mut keeper), keeper.refused()), (vec![], refused));
    // The worker gets the last of the states that it has not got yet.
    for version in 8..12 {
        receive(&mut keeper, 3, OWN, configure(version));
    }
    assert_eq!(versions(&mut keeper), [11]);
}

#[test]
fn sources_at_other_addresses_are_left_out() {
    let mut keeper = welcomed();
    let links = vec![setting(0, &[(1, 0x51), (2, 0x52), (1, 0x53)]), setting(2, &[(1, 0x51)])];
    receive(&mut keeper, 2, OWN, Message::Configure { version: 1, floors: [None; 2], links });
    let Some(Command::Configure(state)) = keeper.poll_command() else { panic!("no state") };
    let sources: Vec<_> = state.links.iter().map(|link| &link.sources[..]).collect();
    assert_eq!(sources, [&[(0, Qpn::new(0x51)), (0, Qpn::new(0x53))][..], &[]]);
}

#[test]
fn worker_answers_with_its_values() {
    let mut keeper = welcomed();
    let mut worker = Representative::new(representative()).unwrap();
    receive(&mut keeper, 2, OWN, configure(5));
    for command in commands(&mut keeper) {
        worker.on_command(command, Nanos(6));
    }
    while let Some(event) = worker.poll_event() {
        keeper.on_event(event, Nanos(7));
    }
    let links = [0, 1, LOOPBACK].map(|link| value(link, true, false)).into();
    let message = Message::Configured { version: 5, outputs: [None; 2], links };
    assert_eq!(sent(&mut keeper), [Envelope { term: 2, incarnation: OWN, message }]);
    let status = keeper.status();
    assert_eq!((status.version, status.counted, status.frozen, status.catching_up), (5, 3, 0, 0));
    receive(&mut keeper, 2, OWN, Message::Ping { number: 6 });
    assert_eq!(sent(&mut keeper)[0].message, Message::Pong { number: 6 });
}

#[test]
fn report_names_all_changes_until_it_is_acknowledged() {
    let mut keeper = welcomed();
    let report = |number, links: &[LinkValue]| {
        let message = Message::Report { number, links: links.to_vec() };
        Envelope { term: 2, incarnation: OWN, message }
    };
    keeper.on_event(Event::Commit(value(0, false, true)), Nanos(10));
    assert_eq!(sent(&mut keeper), [report(1, &[value(0, false, true)])]);
    keeper.on_event(Event::Commit(value(LOOPBACK, true, false)), Nanos(20));
    let both = [value(0, false, true), value(LOOPBACK, true, false)];
    assert_eq!((sent(&mut keeper), keeper.status().silent), (vec![report(2, &both)], 1));
    receive(&mut keeper, 2, OWN, Message::ReportAck { number: 1 });
    keeper.on_timer(Nanos(1_020));
    assert_eq!(sent(&mut keeper), [report(2, &both)], "the answer to an earlier report changes nothing");
    keeper.on_event(Event::Commit(value(0, true, false)), Nanos(1_030));
    let last = [value(0, true, false), value(LOOPBACK, true, false)];
    assert_eq!((sent(&mut keeper), keeper.status().silent), (vec![report(3, &last)], 0));
    keeper.on_connected(Nanos(1_040));
    assert_eq!(sent(&mut keeper), [report(3, &last)]);
    receive(&mut keeper, 2, OWN, Message::ReportAck { number: 3 });
    keeper.on_timer(Nanos(1_000_000));
    keeper.on_connected(Nanos(1_000_000));
    assert_eq!((sent(&mut keeper), keeper.next_timer()), (vec![], None));
}

#[test]
fn addresses_are_mapped() {
    let mapped = address(Ipv4Addr::new(10, 9, 8, 7).into());
    assert_eq!(mapped, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 9, 8, 7]);
    assert_eq!(address(IpAddr::from([1u8; 16])), [1; 16]);
}

#[test]
fn sources_are_assigned_to_both_ends_of_a_link() {
    let mut keeper = welcomed();
    let address = keeper.representative.links[2].address;
    let link = &mut keeper.representative.links[0];
    link.standby = Some(End {
        mac: MacAddr([2; 6]),
        address,
        detour: Vec::new(),
        qpn: Qpn::new(0x90),
        beacon: BeaconForm::Datagram,
    });
    let links = vec![setting(0, &[(1, 0x51), (3, 0x52), (2, 0x53)])];
    receive(&mut keeper, 2, OWN, Message::Configure { version: 1, floors: [None; 2], links });
    let Some(Command::Configure(state)) = keeper.poll_command() else { panic!("no state") };
    assert_eq!(state.links[0].sources, [(0, Qpn::new(0x51)), (1, Qpn::new(0x52))]);
    assert_eq!(state.links[0].muted, [false; 2]);
    // An end without a source is fed no more. A link with one end does not depend on sources.
    let links = vec![setting(0, &[(3, 0x52)]), setting(1, &[])];
    receive(&mut keeper, 2, OWN, Message::Configure { version: 2, floors: [None; 2], links });
    let Some(Command::Configure(state)) = keeper.poll_command() else { panic!("no state") };
    assert_eq!(state.links[0].muted, [true, false]);
    assert_eq!(state.links[1].muted, [false; 2]);
}

#[test]
fn retirement_is_of_the_present_incarnation() {
    let mut keeper = welcomed();
    receive(&mut keeper, 2, Incarnation(8), Message::Retire {});
    assert!(!keeper.status().retired);
    receive(&mut keeper, 2, OWN, Message::Retire {});
    assert!(keeper.status().retired);
}
