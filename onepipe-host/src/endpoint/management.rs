//! Connections to the controllers, in the control thread.

use super::InitError;
use super::reliable::ControlEnds;
use crate::config::Controller;
use crate::function::Shared;
use crate::membership::{Input, Output};
use crossbeam_channel::Receiver;
use management::{Client, ClientConfig, ClientEvent, Peer, Secret};
use onepipe::ProcessId;
use onepipe::control::Envelope;
use std::sync::{Arc, PoisonError};

/// Connections to the controllers, and what the polling thread has for them.
pub(super) struct Management {
    client: Client,
    outputs: Receiver<Output>,
    shared: Arc<Shared>,
}

fn report(shared: &Shared, text: String) {
    *shared.report.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
}

impl Management {
    /// Starts to connect.
    pub(super) fn start(
        config: &Controller,
        id: ProcessId,
        (inputs, outputs): ControlEnds,
        shared: Arc<Shared>,
    ) -> Result<Self, InitError> {
        let config = &config.controllers;
        let secret = config.secret_file.as_deref().map(Secret::read).transpose();
        let secret = secret.map_err(|error| InitError::Controller(error.to_string()))?;
        let (controllers, topology) = (config.addresses.clone(), config.topology);
        let client = ClientConfig { controllers, secret, peer: Peer::Process(id.0), topology };
        let of_events = Arc::clone(&shared);
        // A full channel lets the controllers wait, and one without the polling thread is about to end.
        let on_event = move |event| match event {
            ClientEvent::Connected(_) => drop(inputs.send(Input::Connected)),
            ClientEvent::Disconnected(address, why) => {
                report(&of_events, format!("controller {address}: {why}"));
            }
            ClientEvent::Message(bytes) => match Envelope::decode(&bytes) {
                Ok(envelope) => drop(inputs.send(Input::Message(envelope))),
                Err(why) => report(&of_events, format!("a message of a controller was refused: {why}")),
            },
        };
        let client = Client::start(client, on_event);
        let client = client.map_err(|error| InitError::Controller(error.to_string()))?;
        Ok(Self { client, outputs, shared })
    }

    /// Sends what the polling thread has for the controllers.
    pub(super) fn poll(&self) {
        for output in self.outputs.try_iter() {
            match output {
                Output::Send(envelope) => match envelope.encode() {
                    Ok(bytes) => self.client.send(&bytes),
                    Err(why) => report(&self.shared, format!("a message for the controllers: {why}")),
                },
                Output::Report(event) => report(&self.shared, event.to_string()),
            }
        }
    }
}
