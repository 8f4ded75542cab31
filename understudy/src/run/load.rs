//! Loads that `bench` measures.

use crate::config;
use crate::functions::{FunctionConfig, p4ce};
use crate::system::{catch_signals, explain, random_u64};
use bench::swordbox::load::{Replay, Watch};
use dataplane::{NoControl, Runtime, Stopwatch};
use miette::Report;
use representative::Representative;
use switch::DropReason;
use switch::forward::Forward;

/// Runs the load that `bench p4ce` measures.
pub(crate) fn p4ce_load(args: &bench::p4ce::LoadArgs) -> Result<(), Report> {
    let config = config::load(&args.config).map_err(|report| miette::miette!("{}", report.render()))?;
    let FunctionConfig::P4ce(switch) = &config.function else {
        return Err(miette::miette!("{} has no [p4ce]; add this table", args.config.display()));
    };
    let stop = catch_signals()?;
    let mut runtime = config.runtime.clone();
    for port in &mut runtime.ports {
        port.share_from = args.share_from;
    }
    let mut runtime = Runtime::start(runtime).map_err(|error| explain(&error))?;
    p4ce::load(&mut runtime, switch, args, &stop);
    Ok(())
}

/// Runs the load that `bench health` measures.
pub(crate) fn health_load(args: &bench::health::LoadArgs) -> Result<(), Report> {
    let config = config::load(&args.config).map_err(|report| miette::miette!("{}", report.render()))?;
    let FunctionConfig::Forward(forward) = &config.function else {
        return Err(miette::miette!("{} has no [forward]; add this table", args.config.display()));
    };
    let stop = catch_signals()?;
    let function = Forward::new(forward).salted(random_u64());
    let counters = function.counters();
    let function = bench::health::Advancing::new(function, args.frames);
    let mut runtime = Runtime::start(config.runtime).map_err(|error| explain(&error))?;
    runtime.run_by(workers::health_load, vec![function], &mut NoControl, &stop);
    bench::health::check(&counters)
}

/// Runs the load that `bench swordbox` measures.
pub(crate) fn swordbox_load(args: &bench::swordbox::LoadArgs) -> Result<(), Report> {
    let config = config::load(&args.config).map_err(|report| miette::miette!("{}", report.render()))?;
    let stop = catch_signals()?;
    let load = args.load();
    let functions: Vec<_> = (0..args.workers).map(|worker| load.make_for(worker, args.workers).1).collect();
    let watches: Vec<_> = functions.iter().map(Replay::watch).collect();
    let mut runtime = Runtime::start(config.runtime).map_err(|error| explain(&error))?;
    // The load made its control-plane requests when it was created.
    let outcome = runtime.run_by(workers::swordbox_load, functions, &mut NoControl, &stop);
    drop(runtime);
    let frames = outcome.workers.iter().map(|worker| worker.received()).sum();
    let tally = watches.iter().map(Watch::tally).sum();
    println!("{frames} frames: {tally:?}");
    bench::swordbox::check(&load, args.workers, &tally, frames)
}

/// Runs the load that `bench onepipe` measures.
pub(crate) fn onepipe_load(args: &bench::onepipe::LoadArgs) -> Result<(), Report> {
    let config = config::load(&args.config).map_err(|report| miette::miette!("{}", report.render()))?;
    let stop = catch_signals()?;
    let load = args.load();
    let workers = config.runtime.workers.cpus.len();
    let functions = load.make(workers);
    let counters: Vec<_> = functions.iter().map(Representative::counters).collect();
    let functions: Vec<_> = functions.into_iter().map(Stopwatch::new).collect();
    // Frames that another worker hands over are not timed.
    let laps = (workers == 1).then(|| functions[0].laps());
    let mut runtime = Runtime::start(config.runtime).map_err(|error| explain(&error))?;
    let outcome = runtime.run_by(workers::onepipe_load, functions, &mut NoControl, &stop);
    drop(runtime);
    // A message is counted when it is sent: not if a full ring between workers has dropped it.
    let handoff_full = DropReason::HandoffFull.index();
    let frames =
        outcome.workers.iter().map(|worker| worker.received() - worker.drops[handoff_full].get()).sum();
    let beacons: u64 = counters.iter().map(|counters| counters.beacons.get()).sum();
    println!("{frames} frames, {beacons} beacons sent");
    if let Some(ns) = laps.and_then(|laps| laps.median_ns()) {
        println!("{}{ns}", bench::OWN_TIME);
    }
    bench::onepipe::check(&load, &counters, frames)
}
