//! Commands of the control plane to the data plane, and events in the other direction.

use crate::config::{Connection, Layers};
use rocev2::{Psn, Qpn};
use switch::{PortId, forward};

/// Command of the control plane to the function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The connection may be translated from now on.
    PermitTranslation(Connection),
    /// Replaces the enabled layers.
    Layers(Layers),
    /// Command to the bridge
    Bridge(forward::Command),
    /// A switch-owned QP is connected. The reply is [`Event::SharedQpOpened`].
    OpenSharedQp(Box<OpenSharedQp>),
    /// A switch-owned QP is disconnected.
    CloseSharedQp {
        /// Index of the shared QP
        shared_qp: u32,
        /// The switch's queue pair number, which is new for each connection
        qpn: Qpn,
    },
}

/// Event from the function to the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Requests permission to translate the connection. The reply is [`Command::PermitTranslation`], once the
    /// journal has the connection.
    TranslationRequested(Connection),
    /// The connection is over: the journal may drop it.
    ConnectionEnded(Connection),
    /// Result of [`Command::OpenSharedQp`].
    SharedQpOpened {
        /// Index of the shared QP
        shared_qp: u32,
        /// The switch's queue pair number
        qpn: Qpn,
        /// Whether the QP is usable; false if the tables had no room
        opened: bool,
    },
    /// Event of the bridge
    Bridge(forward::Event),
    /// A switch-owned QP failed.
    SharedQpLost {
        /// Index of the shared QP
        shared_qp: u32,
        /// The switch's queue pair number
        qpn: Qpn,
    },
}

/// Parameters of a connected switch-owned QP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenSharedQp {
    /// Index of the shared QP
    pub shared_qp: u32,
    /// The switch's queue pair number
    pub qpn: Qpn,
    /// Packet with the headers of all packets on this QP
    pub template: Vec<u8>,
    /// Output port
    pub port: PortId,
    /// Starting PSN
    pub psn: Psn,
    /// READs and atomics that the server accepts at once
    pub rd_atomic: u8,
}
