//! A software RDMA NIC.

pub mod cm;
