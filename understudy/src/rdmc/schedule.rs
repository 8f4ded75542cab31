//! `understudy rdmc schedule`: prints the schedule of a transfer as a drawing or as JSON.

use crate::config::EXIT_CODE;
use crate::output::{print, print_error};
use ::rdmc::model::{Network, Object, run as model};
use ::rdmc::{Algorithm, Racks, Schedule, To, switch_fanout};
use clap::ValueEnum;
use core::fmt::Write as _;
use core::num::NonZeroU32;
use miette::MietteDiagnostic;
use serde::Serialize;
use std::process::ExitCode;

/// Print and draw the schedule of a transfer: sender, receiver and block of each step
///
/// Node 0 is the root. Nothing is sent: the schedule is computed, as each member of a group computes its own
/// part of it.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Algorithm that distributes the blocks
    #[arg(long, value_enum, default_value_t = Kind::Pipeline)]
    algorithm: Kind,
    /// Number of nodes, including the root
    #[arg(long, short = 'n', value_name = "N")]
    nodes: u32,
    /// Number of blocks of the object
    #[arg(long, short = 'k', value_name = "K", required_unless_present = "bytes", conflicts_with = "bytes")]
    blocks: Option<u32>,
    /// Size of the object in bytes
    #[arg(long, requires = "block_bytes")]
    bytes: Option<u32>,
    /// Size of a block in bytes
    #[arg(long, value_name = "BYTES", requires = "bytes")]
    block_bytes: Option<u32>,
    /// For hybrid: number of nodes in each rack, beginning with the root's rack
    #[arg(long, value_name = "N,N,...", value_delimiter = ',')]
    racks: Vec<NonZeroU32>,
    /// Show this node only
    #[arg(long)]
    node: Option<u32>,
    /// Rate of each host's port, for an estimate of the time
    #[arg(long, value_name = "GBPS", requires = "bytes")]
    rate_gbps: Option<f64>,
    /// Latency from one host to another, for the estimate
    #[arg(long, value_name = "US", default_value_t = 2.0)]
    latency_us: f64,
    /// Print all transfers as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// The root sends the whole object to one node after the other
    Sequential,
    /// Each node passes blocks on to the next
    Chain,
    /// Each node with the whole object sends it to a node without it
    Tree,
    /// Binomial pipeline: all nodes exchange blocks along a hypercube
    Pipeline,
    /// A pipeline over racks, and one within each rack
    Hybrid,
    /// A P4CE switch copies what the root sends once
    InNetwork,
}

impl Kind {
    /// Returns the algorithm. `racks` is only called for hybrid.
    pub(super) fn algorithm<E>(self, racks: impl FnOnce() -> Result<Racks, E>) -> Result<Algorithm, E> {
        Ok(match self {
            Self::Sequential => Algorithm::Sequential,
            Self::Chain => Algorithm::Chain,
            Self::Tree => Algorithm::Tree,
            Self::Pipeline => Algorithm::Pipeline,
            Self::InNetwork => Algorithm::InNetwork,
            Self::Hybrid => Algorithm::Hybrid(racks()?),
        })
    }
}

/// Limits of the drawing, in nodes and steps
const MAX_DRAWN_NODES: u32 = 64;
const MAX_DRAWN_STEPS: u64 = 24;
/// Limit on nodes times steps
const MAX_CELLS: u64 = 200_000_000;

impl Args {
    fn algorithm(&self) -> Result<Algorithm, String> {
        if self.racks.is_empty() != (self.algorithm != Kind::Hybrid) {
            return Err(
                "--racks is required for hybrid and not valid otherwise; write, for example, --racks 4,4,4"
                    .into(),
            );
        }
        self.algorithm.algorithm(|| {
            let of = |(rack, nodes): (usize, &NonZeroU32)| {
                core::iter::repeat_n(rack, nodes.get().min(Schedule::MAX_NODES + 1) as usize)
            };
            let of: Vec<usize> = self.racks.iter().enumerate().flat_map(of).collect();
            Racks::new(&of).map_err(|error| error.to_string())
        })
    }

    fn blocks(&self) -> Result<u32, String> {
        match (self.blocks, self.bytes, self.block_bytes) {
            (Some(blocks), ..) => Ok(blocks),
            (_, Some(0), _) => Err("--bytes is 0, so there is nothing to send; use 1 or more".into()),
            (_, Some(bytes), Some(block)) if block == 0 || block > bytes => {
                Err(format!("--block-bytes {block} is out of range for {bytes} bytes; use 1 to {bytes}"))
            }
            (_, Some(bytes), Some(block)) => Ok(bytes.div_ceil(block)),
            _ => Err("the number of blocks is missing; add --blocks, or --bytes and --block-bytes".into()),
        }
    }

    fn schedule(&self) -> Result<Schedule, String> {
        let schedule = Schedule::new(self.algorithm()?, self.nodes, self.blocks()?);
        let schedule = schedule.map_err(|error| error.to_string())?;
        if self.node.is_some_and(|node| node >= self.nodes) {
            return Err(format!("--node is out of range; use 0 to {}", self.nodes - 1));
        }
        if schedule.steps().saturating_mul(self.nodes.into()) > MAX_CELLS {
            return Err(format!(
                "{} steps of {} nodes are too many to print; use fewer nodes or blocks",
                schedule.steps(),
                self.nodes
            ));
        }
        if self.rate_gbps.is_some_and(|rate| !(rate > 0.0 && rate.is_finite()))
            || self.latency_us.is_nan()
            || self.latency_us < 0.0
        {
            return Err(
                "--rate-gbps or --latency-us is out of range; use a rate above 0 and a latency of 0 or more"
                    .into(),
            );
        }
        Ok(schedule)
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let text = args.schedule().map(|schedule| {
        if args.json {
            json(&schedule, args.node)
        } else {
            summary(args, &schedule) + &drawing(args, &schedule)
        }
    });
    match text {
        Ok(text) => print(&text, ExitCode::SUCCESS),
        Err(what) => {
            print_error(format_args!("{:?}", miette::Report::new(MietteDiagnostic::new(what))));
            ExitCode::from(EXIT_CODE)
        }
    }
}

fn json(schedule: &Schedule, only: Option<u32>) -> String {
    let nodes = only.map_or(0..schedule.nodes(), |node| node..node + 1);
    let sends = nodes.flat_map(|node| schedule.sends(node).map(move |(step, send)| (step, node, send)));
    let row = |(step, from, send): (u64, u32, ::rdmc::Send)| {
        let to = match send.to {
            To::Node(to) => Receiver::Node(to),
            To::All => Receiver::All("all"),
        };
        SendRow { step, from, to, block: send.block }
    };
    let printed = Printed {
        algorithm: schedule.algorithm().name(),
        nodes: schedule.nodes(),
        blocks: schedule.blocks(),
        steps: schedule.steps(),
        sends: sends.map(row).collect(),
    };
    serde_json::to_string(&printed).expect("numbers and text always serialise") + "\n"
}

/// Result of `--json`. Fields are added, not renamed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Printed {
    algorithm: &'static str,
    /// Nodes, including the sender of the object
    nodes: u32,
    /// Blocks of the object
    blocks: u32,
    /// Steps until all nodes have all blocks
    steps: u64,
    /// Sends of all nodes, or of that of `--node`
    sends: Vec<SendRow>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct SendRow {
    /// Number of the step, from 0
    step: u64,
    /// Number of the node that sends
    from: u32,
    /// Number of the node that receives, or `all` if the switch copies
    to: Receiver,
    /// Number of the block, from 0
    block: u32,
}

#[derive(Serialize)]
#[serde(untagged)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Receiver {
    Node(u32),
    All(&'static str),
}

/// Returns a note for a group that has more receivers than a switch copies to at once.
pub(super) fn copies_note(times: usize, ipv4: bool) -> String {
    let max = switch_fanout(ipv4);
    format!("A switch copies to at most {max} receivers at once, so the root sends each block {times} times.")
}

/// Returns the totals of the schedule, with the steps of the other algorithms.
fn summary(args: &Args, schedule: &Schedule) -> String {
    let (n, k) = (schedule.nodes(), schedule.blocks());
    let name = schedule.algorithm().name();
    let mut text = format!("{name}: {n} nodes, {k} blocks, {} steps", schedule.steps());
    let all =
        [Algorithm::Sequential, Algorithm::Chain, Algorithm::Tree, Algorithm::Pipeline, Algorithm::InNetwork];
    let others = all.into_iter().filter(|other| other.name() != name);
    let others = others.filter_map(|other| {
        let steps = Schedule::new(other.clone(), n, k).ok()?.steps();
        Some(format!("{} {steps}", other.name()))
    });
    _ = writeln!(text, " ({})", others.collect::<Vec<_>>().join(", "));
    let max = (1..n).map(|node| schedule.sends(node).count()).max().unwrap_or(0);
    let mut root = schedule.sends(0).count();
    let times = (n as usize - 1).div_ceil(switch_fanout(true));
    if *schedule.algorithm() == Algorithm::InNetwork && times > 1 {
        root *= times;
        _ = writeln!(text, "{}", copies_note(times, true));
    }
    _ = writeln!(text, "The root sends {root} blocks, every other node at most {max}.");
    if let (Some(rate), Some(bytes), Some(block)) = (args.rate_gbps, args.bytes, args.block_bytes) {
        let network = Network::new(n as usize, rate * 1e9, args.latency_us / 1e6);
        let (bytes, block) = (u64::from(bytes), u64::from(block));
        let members = (0..n as usize).collect();
        let object = Object { schedule: schedule.clone(), members, bytes, block, at: 0.0 };
        let sent = &model(&network, &[object])[0];
        let (first, last) = (sent.first(), sent.last());
        let copies = f64::from(schedule.nodes() - 1) * bytes as f64 * 8.0 / last / 1e9;
        _ = writeln!(
            text,
            "At {rate} Gb/s, the first node has all of it after {:.3} ms, the last one after {:.3} ms: {copies:.1} Gb/s of copies.",
            first * 1e3,
            last * 1e3
        );
    }
    text
}

/// Describes what a node sends and receives at a step: `3>5` sends block 3 to node 5, `<2` receives block 2.
fn cell(schedule: &Schedule, node: u32, step: u64) -> String {
    let mut cell = match schedule.send(node, step) {
        Some(send) => match send.to {
            To::Node(to) => format!("{}>{to}", send.block),
            To::All => format!("{}>all", send.block),
        },
        None => String::new(),
    };
    if let Some(receive) = schedule.receive(node, step) {
        cell += if cell.is_empty() { "<" } else { " <" };
        _ = write!(cell, "{}", receive.block);
    }
    if cell.is_empty() { ".".into() } else { cell }
}

fn drawing(args: &Args, schedule: &Schedule) -> String {
    let nodes: Vec<u32> = match args.node {
        Some(node) => vec![node],
        None => (0..schedule.nodes().min(MAX_DRAWN_NODES)).collect(),
    };
    if let [node] = nodes[..] {
        return node_drawing(schedule, node);
    }
    let steps = schedule.steps().min(MAX_DRAWN_STEPS);
    let row = |node: u32| (0..steps).map(|step| cell(schedule, node, step)).collect::<Vec<_>>();
    let cells: Vec<Vec<String>> = nodes.iter().map(|node| row(*node)).collect();
    let width = |step: usize| {
        let widest = cells.iter().map(|row| row[step].len()).max().unwrap_or(0);
        widest.max(step.to_string().len()) + 2
    };
    let widths: Vec<usize> = (0..steps as usize).map(width).collect();
    let mut text = String::from("\nstep ");
    for (step, width) in widths.iter().enumerate() {
        _ = write!(text, "{step:<width$}");
    }
    for (node, row) in nodes.iter().zip(&cells) {
        text.truncate(text.trim_end().len());
        _ = write!(text, "\n{node:>4} ");
        for (cell, width) in row.iter().zip(&widths) {
            _ = write!(text, "{cell:<width$}");
        }
    }
    text.truncate(text.trim_end().len());
    text += "\n     3>5: sends block 3 to node 5. <2: receives block 2.\n";
    if steps < schedule.steps() || nodes.len() < schedule.nodes() as usize {
        text += "     The drawing is incomplete: use --node for one node, --json for everything.\n";
    }
    text += "\nBlocks of each node, step by step:\n";
    for node in nodes {
        _ = writeln!(text, "{node:>4} {}", shades(schedule, node));
    }
    text
}

/// Describes what a node does, one line for each step at which it is active.
fn node_drawing(schedule: &Schedule, node: u32) -> String {
    let mut text = format!("\nNode {node}:\n");
    for step in 0..schedule.steps() {
        let cell = cell(schedule, node, step);
        if cell != "." {
            _ = writeln!(text, "{step:>6}  {cell}");
        }
    }
    _ = writeln!(text, "\n{node:>4} {}", shades(schedule, node));
    text
}

/// Returns the fill level of a node over time, as shaded characters.
fn shades(schedule: &Schedule, node: u32) -> String {
    const SHADES: [char; 5] = ['\u{b7}', '\u{2591}', '\u{2592}', '\u{2593}', '\u{2588}'];
    let (steps, blocks) = (schedule.steps(), u64::from(schedule.blocks()));
    let columns = steps.min(64);
    let mut has = if node == 0 { blocks } else { 0 };
    let mut text = String::new();
    for column in 0..columns {
        let (from, to) = (column * steps / columns, (column + 1) * steps / columns);
        has += (from..to).filter(|step| schedule.receive(node, *step).is_some()).count() as u64;
        // Full only if the node has all blocks, empty only if it has none.
        let shade = if has == blocks { 4 } else { (has * 4).div_ceil(blocks).min(3) };
        text.push(SHADES[shade as usize]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json as expected;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        Cli::try_parse_from(["x"].into_iter().chain(line.split_whitespace())).unwrap().args
    }

    #[test]
    fn figure_3_is_drawn() {
        let args = args("-n 8 -k 3");
        let schedule = args.schedule().unwrap();
        let text = summary(&args, &schedule) + &drawing(&args, &schedule);
        let head = "pipeline: 8 nodes, 3 blocks, 5 steps (sequential 21, chain 9, tree 9, in-network 3)\n";
        assert!(text.starts_with(head), "{text}");
        assert!(text.contains("\n   0 0>1  1>2  2>4  2>1     2>2\n"), "{text}");
        assert!(text.contains("\n   4 .    .    <2   2>5 <0  2>6 <1\n"), "{text}");
        assert!(text.contains("\n   4 \u{b7}\u{b7}\u{2592}\u{2593}\u{2588}\n"), "{text}");
    }

    #[test]
    fn the_summary_estimates_the_time() {
        let args = args("-n 4 --bytes 268435456 --block-bytes 1048576 --rate-gbps 40 --latency-us 1.5");
        let text = summary(&args, &args.schedule().unwrap());
        assert!(text.contains("the last one after 54.669 ms"), "{text}");
    }

    #[test]
    fn a_switch_copies_to_twelve_at_once() {
        let line = "--bytes 10000000 --block-bytes 1000000 --algorithm in-network --rate-gbps 40";
        let text = |nodes: u32| {
            let args = args(&format!("-n {nodes} {line}"));
            summary(&args, &args.schedule().unwrap())
        };
        assert!(text(13).contains("The root sends 10 blocks") && text(13).contains("all of it after 2.0"));
        let more = text(14);
        assert!(more.contains("each block 2 times") && more.contains("The root sends 20 blocks"), "{more}");
        assert!(more.contains("all of it after 4.0"), "{more}");
    }

    #[test]
    fn one_node_is_drawn_and_all_sends_are_in_the_json() {
        let args = args("-n 5 -k 2 --algorithm chain --node 2");
        let schedule = args.schedule().unwrap();
        assert!(drawing(&args, &schedule).contains("     2  0>3 <1\n"), "{}", drawing(&args, &schedule));
        let value: serde_json::Value = serde_json::from_str(&json(&schedule, None)).unwrap();
        assert_eq!(value["sends"].as_array().unwrap().len(), 8);
        assert_eq!(value["sends"][0], expected!({ "step": 0, "from": 0, "to": 1, "block": 0 }));
    }

    #[test]
    fn invalid_arguments_are_refused() {
        for (line, what) in [
            ("-n 1 -k 3", "at least 2 members"),
            ("-n 4 -k 0", "use at least 1 block"),
            ("-n 4 -k 3 --node 4", "use 0 to 3"),
            ("-n 4 --bytes 0 --block-bytes 1", "nothing to send"),
            ("-n 4 --bytes 10 --block-bytes 0", "use 1 to 10"),
            ("-n 4 --bytes 10 --block-bytes 11", "use 1 to 10"),
            ("-n 4 -k 2 --algorithm hybrid", "--racks"),
            ("-n 4 -k 2 --racks 2,2", "--racks"),
            ("-n 4 -k 2 --algorithm hybrid --racks 2,1", "racks are given for 3 nodes, but the group has 4"),
            ("-n 60000 -k 60000", "too many to print"),
            ("-n 4 --bytes 10 --block-bytes 2 --rate-gbps 0", "a rate above 0"),
        ] {
            let error = args(line).schedule().unwrap_err();
            assert!(error.contains(what), "{line}: {error}");
        }
    }
}
