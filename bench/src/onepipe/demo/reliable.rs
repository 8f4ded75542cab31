//! Both services on the testbed while hosts, links, switches and the controller fail.

use super::{Output, SEED, name, us};
use miette::{Report, miette};
use representative::Incarnation;
use serde_json::json;
use switch::Nanos;
use workloads::onepipe::reliable::{Interval, Outage, Testbed};
use workloads::onepipe::{BEACON_INTERVAL, FatTree};

pub(super) const COLUMNS: [&str; 10] = [
    "time us",
    "what happens",
    "hosts",
    "members",
    "best effort",
    "reliable",
    "recalled",
    "failed",
    "stall us",
    "commit stall us",
];

/// Switch that two hosts represent: that of rack 0
const DOUBLED: usize = 0;

const OUTAGES: [(Outage, &str); 12] = [
    (Outage::Nothing, ""),
    (Outage::Host(9), "host 9 fails"),
    (Outage::Link(17), "the link of host 17 fails"),
    (Outage::CoreLink, "a core link fails"),
    (Outage::Representative(DOUBLED), "one of rack 0's two representatives fails"),
    (Outage::NewRepresentative(DOUBLED), "it starts again"),
    (Outage::Drain(DOUBLED), "the other one is drained, and starts again"),
    (Outage::Controller, "the controller ends"),
    (Outage::NewController, "a controller starts from its store"),
    (Outage::Rack, "the switch of rack 3 fails"),
    (Outage::Return, "hosts and switch return"),
    (Outage::Nothing, ""),
];

/// What all rows show.
#[derive(Debug, Default)]
pub(super) struct Sums {
    delivered: [u64; 2],
    recalled: u64,
    failed: usize,
    /// Longest stall of the best-effort and of the commit barrier
    stall: [Nanos; 2],
}

impl Sums {
    fn add(&mut self, row: &Interval) {
        for service in 0..2 {
            self.delivered[service] += row.delivered[service];
            self.stall[service] = self.stall[service].max(row.stall[service]);
        }
        self.recalled += row.recalled;
        self.failed += row.failed;
    }

    /// Returns what was shown, in a sentence.
    pub(super) fn headline(&self) -> String {
        let ([best_effort, reliable], [stall, commit]) =
            (self.delivered, self.stall.map(|time| us(time.0 as f64)));
        format!(
            "{best_effort} best-effort and {reliable} reliable messages delivered in one order, the latter by all or none; \
             {} processes failed and returned, {} scatterings recalled; best effort stood still for {stall} us at most, \
             commit for {commit} us",
            self.failed, self.recalled
        )
    }
}

/// Runs the testbed with all outages, one after the other, and adds a row for each.
///
/// # Errors
/// A scattering was delivered by a part of its receivers, the order was violated, or the network has not recovered.
pub(super) fn run(incarnation: Incarnation, time: Nanos, output: &mut Output) -> Result<Sums, Report> {
    let wrong = |what: String| miette!("{}: {what}", name(incarnation));
    let mut tree = FatTree::testbed(incarnation);
    (tree.every, tree.skew_ns) = (Nanos::from_micros(30), 300);
    tree.standby = Some(DOUBLED);
    let mut bed = Testbed::of_applications(&tree, SEED).map_err(wrong)?;
    let (mut sums, mut at) = (Sums::default(), 0);
    for (n, (outage, what)) in OUTAGES.into_iter().enumerate() {
        let row = bed.interval(outage, time).map_err(wrong)?;
        at += row.lasts.0;
        sums.add(&row);
        let value = json!({
            "barriers": name(incarnation),
            "time_us": at / 1000,
            "what_happens": what,
            "hosts": row.hosts,
            "members": row.members,
            "best_effort": row.delivered[0],
            "reliable": row.delivered[1],
            "recalled": row.recalled,
            "failed": row.failed,
            "stall_us": us(row.stall[0].0 as f64),
            "commit_stall_us": us(row.stall[1].0 as f64),
        });
        output.add(value, n + 1 == OUTAGES.len())?;
    }
    bed.finish().map_err(wrong)?;
    Ok(sums)
}

/// Prints what the rows are about.
pub(super) fn introduce() {
    println!(
        "\nBoth services, on the same testbed with a controller and its store. A host beside each switch is its representative and\n\
         keeps its barriers; the switch of rack 0 has two. Every host sends scatterings to drawn receivers, every 30 us on\n\
         average, 6 of 10 of them reliable: they are delivered by all their receivers or by none. Beacons leave every {} us.\n",
        BEACON_INTERVAL.0 / 1000
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_outage_ends_either_service() {
        let mut output = Output::new(&COLUMNS, true);
        let sums = run(Incarnation::Host, Nanos::from_micros(400), &mut output).unwrap();
        assert!(sums.delivered.iter().all(|&delivered| delivered > 2_000), "{sums:?}");
        assert!(sums.failed == 10 && sums.recalled > 0, "two hosts, and the eight of a rack: {sums:?}");
        assert!(sums.stall[0] < Nanos::from_micros(100), "{sums:?}");
        assert!(sums.stall[1] < Nanos::from_millis(1), "{sums:?}");
    }
}
