//! The host's control plane, which ends the run when all clients are done, and the host's report.

use super::{Event, Host, HostConfig, HostStatus, ServiceRow};
use crate::functions::launch::{ClosingReport, Launch};
use crate::functions::ports::Ports;
use crate::observe::{FunctionMetrics, Port, Row, Table, Values, headings};
use comfy_table::{Cell, CellAlignment, presets};
use core::fmt::Write as _;
use dataplane::{ControlHandler, ControlOutput, Live, Mbuf};
use serde::Serialize;
use std::process::ExitCode;
use switch::PortId;
use switch::metrics::Metrics as _;

/// Ends the run when all clients are done.
#[derive(Default)]
struct ClientWatch {
    done: bool,
}

impl ControlHandler<Host> for ClientWatch {
    fn on_event(&mut self, _worker: usize, event: Event, _out: &mut ControlOutput<'_, Host>) {
        self.done |= event == Event::Done;
    }

    fn on_punt(&mut self, _worker: usize, _frame: Mbuf, _port: PortId, _out: &mut ControlOutput<'_, Host>) {}

    fn on_tick(&mut self, _live: &Live<'_>, _out: &mut ControlOutput<'_, Host>) -> bool {
        !self.done
    }
}

/// The closing report of a host.
pub(super) struct Report {
    seconds: f64,
    status: HostStatus,
    ports: Ports,
}

pub(super) fn run(config: &HostConfig, launch: Launch<'_>) -> Result<Report, miette::Report> {
    let mut run = launch.start()?;
    let host = Host::new(config, run.port_mac().0).map_err(|error| miette::miette!("{error}"))?;
    let status = host.status();
    let metrics =
        |_: &ClientWatch| metrics_of(&status.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    let (outcome, seconds) = run.run(vec![host], &mut ClientWatch::default(), metrics);
    let status = status.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    let ports = Ports::of(&run.runtime, &outcome);
    Ok(Report { seconds, status, ports })
}

/// Returns the host's metrics for observation.
fn metrics_of(status: &HostStatus) -> FunctionMetrics {
    let services =
        status.services.iter().map(|row| Row::of([row.service, &row.port.to_string()], &Values::of(row)));
    FunctionMetrics::default().values(&counters_of(status)).table(Table::of(&ServiceRow::GROUP, services))
}

/// The serialised form of the closing report. Fields are added, not renamed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Printed<'a> {
    /// Length of the run
    seconds: f64,
    /// Counters of the NIC
    #[cfg_attr(test, schemars(schema_with = "crate::reference::metrics2::<rnic::Counters, HostStatus>"))]
    nic: Values,
    services: &'a Vec<ServiceRow>,
    ports: &'a Vec<Port>,
}

impl ClosingReport for Report {
    /// Returns failure if a service failed.
    fn code(&self) -> ExitCode {
        let failed = self.status.services.iter().any(|row| row.failed > 0 || row.error.is_some());
        if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    fn json(&self) -> String {
        let printed = Printed {
            seconds: self.seconds,
            nic: counters_of(&self.status),
            services: &self.status.services,
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
        for row in &self.status.services {
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
        for row in &self.status.services {
            if let Some(error) = &row.error {
                // Writing to a string does not fail.
                _ = writeln!(text, "{} at port {}: {error}", row.service, row.port);
            }
        }
        text + "\n" + &self.ports.notes + &counters_line(&counters_of(&self.status), self.seconds)
    }
}

/// Returns the counters of the NIC, and of frames dropped because the port was blocked.
fn counters_of(status: &HostStatus) -> Values {
    Values::of(&status.counters).and(Values::of(status))
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
    use serde_json::json;

    #[test]
    fn dropped_frames_are_in_the_report_of_a_host() {
        let status = HostStatus { control_dropped: 5, tcp_dropped: 7, ..HostStatus::default() };
        let mut report = Report { seconds: 1.0, status, ports: Ports::default() };
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
