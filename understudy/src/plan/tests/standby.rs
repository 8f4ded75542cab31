//! Files of switches with a standby.

use super::super::{files, tables};
use crate::config::{self, Network};
use crate::functions::FunctionConfig;
use representative::Config;
use std::path::Path;

/// Returns the shipped example, in which a switch of each layer has a standby.
fn with_standbys() -> Network {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/onepipe/testbed.toml");
    let mut text = std::fs::read_to_string(&path).unwrap();
    for (switch, host) in [("tor1", "h8"), ("spine1", "h12"), ("core1", "h12")] {
        let name = format!("[[switch]]\nname = \"{switch}\"\n");
        assert!(text.contains(&name));
        text = text.replace(&name, &format!("{name}standby = \"{host}\"\n"));
    }
    config::parse_plan(&path, &text).unwrap_or_else(|report| panic!("{}", report.render()))
}

#[test]
fn files_of_standbys_and_their_neighbours_have_the_values_of_the_plan() {
    let network = with_standbys();
    let (topology, plan) = (&network.topology, &network.plan);
    let files = files::all(&network);
    let folder = tempfile::tempdir().unwrap();
    let (mut standbys, mut second_ends) = (0, 0);
    let load = |name: String| {
        let file = files.iter().find(|file| file.name == name)?;
        let path = folder.path().join(&file.name);
        std::fs::write(&path, &file.content).unwrap();
        Some(config::load(&path).unwrap_or_else(|report| panic!("{}", report.render())).function)
    };
    for (number, switch) in topology.switches.iter().enumerate() {
        let planned = [Some(plan.config(topology, number)), plan.standby_config(topology, number)];
        standbys += usize::from(planned[1].is_some());
        for (planned, kind) in planned.into_iter().zip(["representative", "standby"]) {
            let read = load(format!("{}.{kind}.toml", switch.name));
            let Some(planned) = planned else {
                assert!(read.is_none());
                continue;
            };
            let Some(FunctionConfig::OnePipe(read)) = read else { panic!("{}: {read:?}", switch.name) };
            second_ends += planned.links.iter().filter(|link| link.standby.is_some()).count();
            assert_eq!(read.switch, Config { forward: read.switch.forward.clone(), ..planned });
        }
    }
    // To tor1, spine1 and core1, from each of their neighbours' hosts
    assert_eq!((standbys, second_ends), (3, (2 + 1) + (2 + 1 + 2 + 1) + (2 + 1 + 1 + 1)));
    for (number, host) in topology.senders() {
        let (_, planned) = plan.process(topology, number).unwrap();
        let read = load(format!("{}.process.toml", host.name));
        let Some(FunctionConfig::Process(read)) = read else { panic!("{}: {read:?}", host.name) };
        assert_eq!(read.process, planned);
        assert_eq!(planned.standby.is_some(), host.switches == [0]);
    }
}

#[test]
fn tables_name_both_hosts() {
    let network = with_standbys();
    let switches = tables::switches(&network);
    let line = switches.lines().find(|line| line.trim_start().starts_with("tor1 ")).unwrap();
    assert!(line.contains("h1, h8") && line.contains("10.0.1.1, 10.0.1.8"), "{line}");
    let beacons = tables::beacons(&network);
    let count = |words: &str| beacons.lines().filter(|line| line.contains(words)).count();
    assert_eq!(
        (count("tor1 -> spine1"), count("core1 -> spine1"), count("tor2 -> spine2")),
        (4, 4, 1),
        "{beacons}"
    );
    assert!(tables::notes(&network).contains("h12 (spine1, core1)"), "{}", tables::notes(&network));
}
