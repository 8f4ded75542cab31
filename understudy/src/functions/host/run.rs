//! The host's control plane, which ends the run when all clients are done, and the host's report.

use super::status::Total;
use super::{Event, Host, HostConfig, HostControl, ServiceRow};
use crate::functions::launch::{ClosingReport, Launch};
use crate::functions::ports::Ports;
use crate::observe::{FunctionMetrics, Port, Row, Table, Values, headings};
use comfy_table::{Cell, CellAlignment, presets};
use core::fmt::Write as _;
use dataplane::{ControlHandler, ControlOutput, ControlPlane, Live, Mbuf, run_worker};
use serde::Serialize;
use std::process::ExitCode;
use switch::PortId;
use switch::metrics::Metrics as _;

/// Runs the control plane, and ends the run when all clients are done.
struct Plane(ControlPlane<HostControl>);

impl ControlHandler<Host> for Plane {
    fn on_event(&mut self, worker: usize, event: Event, out: &mut ControlOutput<'_, Host>) {
        self.0.on_event(worker, event, out);
    }

    fn on_punt(&mut self, worker: usize, frame: Mbuf, port: PortId, out: &mut ControlOutput<'_, Host>) {
        self.0.on_punt(worker, frame, port, out);
    }

    fn on_tick(&mut self, live: &Live<'_>, out: &mut ControlOutput<'_, Host>) -> bool {
        self.0.on_tick(live, out) && !self.0.control.is_done()
    }
}

/// The closing report of a host.
pub(super) struct Report {
    seconds: f64,
    total: Total,
    ports: Ports,
}

pub(super) fn run(config: &HostConfig, launch: Launch<'_>) -> Result<Report, miette::Report> {
    let mut run = launch.start()?;
    let functions = config.functions(run.port_mac().0).map_err(|error| miette::miette!("{error}"))?;
    let statuses: Vec<_> = functions.iter().map(Host::status).collect();
    let mut plane = Plane(ControlPlane::new(HostControl::new(config.workers)));
    let metrics = |_: &Plane| metrics_of(&Total::of(&statuses));
    let (outcome, seconds) = run.run(run_worker, functions, &mut plane, metrics);
    let ports = Ports::of(&run.runtime, &outcome);
    Ok(Report { seconds, total: Total::of(&statuses), ports })
}

/// Returns the host's metrics for observation.
fn metrics_of(total: &Total) -> FunctionMetrics {
    let services =
        total.services.iter().map(|row| Row::of([row.service, &row.port.to_string()], &Values::of(row)));
    FunctionMetrics::default().values(&total.nic).table(Table::of(&ServiceRow::GROUP, services))
}

/// The serialised form of the closing report. Fields are added, not renamed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Printed<'a> {
    /// Length of the run
    seconds: f64,
    /// Counters of the NIC
    #[cfg_attr(
        test,
        schemars(schema_with = "crate::reference::metrics2::<rnic::Counters, super::HostStatus>")
    )]
    nic: Values,
    services: &'a Vec<ServiceRow>,
    ports: &'a Vec<Port>,
}

impl ClosingReport for Report {
    /// Returns failure if a service failed.
    fn code(&self) -> ExitCode {
        let failed = self.total.services.iter().any(|row| row.failed > 0 || row.error.is_some());
        if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    fn json(&self) -> String {
        let printed = Printed {
            seconds: self.seconds,
            nic: self.total.nic.clone(),
            services: &self.total.services,
            ports: &self.ports.rows,
        };
        serde_json::to_string(&printed).expect("numbers and text always serialise")
    }

    fn text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        let numbers = headings(&[], &ServiceRow::GROUP);
        let head = |name: &str| Cell::new(name).set_alignment(CellAlignment::Right);
        let words = [Cell::new("service"), head("port")];
        table.set_header(words.into_iter().chain(numbers.into_iter().map(head)));
        for row in &self.total.services {
            let numbers = [u64::from(row.port)].into_iter().chain(Values::of(row).numbers());
            let numbers = numbers.map(|n| Cell::new(n).set_alignment(CellAlignment::Right));
            table.add_row([Cell::new(row.service)].into_iter().chain(numbers));
        }
        let mut text = String::new();
        if !table.is_empty() {
            for line in table.lines() {
                text += line.trim_end();
                text.push('\n');
            }
        }
        for row in &self.total.services {
            if let Some(error) = &row.error {
                // Writing to a string does not fail.
                _ = writeln!(text, "{} at port {}: {error}", row.service, row.port);
            }
        }
        text + "\n" + &self.ports.notes + &counters_line(&self.total.nic, self.seconds)
    }
}

/// Returns the counters that are not zero, in one line.
pub(in crate::functions) fn counters_line(all: &Values, seconds: f64) -> String {
    let counters: Vec<_> =
        all.nonzero().map(|(name, value)| format!("{value} {}", name.replace('_', " "))).collect();
    format!("NIC: {}, in {seconds:.2} s", counters.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::host::HostStatus;
    use serde_json::json;
    use std::sync::{Arc, Mutex};

    #[test]
    fn dropped_frames_are_in_the_report_of_a_host() {
        let status = HostStatus { control_dropped: 5, tcp_dropped: 7, ..HostStatus::default() };
        let total = Total::of(&[Arc::new(Mutex::new(status))]);
        let mut report = Report { seconds: 1.0, total, ports: Ports::default() };
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!((&json["nic"]["control_dropped"], &json["nic"]["tcp_dropped"]), (&json!(5), &json!(7)));
        assert_eq!(report.text(), "\nNIC: 5 control dropped, 7 tcp dropped, in 1.00 s");
        report.ports.notes = "port eth: its link is not up: down\n".into();
        assert!(
            report.text().starts_with("\nport eth: its link is not up: down\nNIC: "),
            "{}",
            report.text()
        );
    }
}
