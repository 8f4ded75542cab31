//! A software RDMA NIC.
