//! Runs a gateway or a device: configuration, reload, DNS names, routes, metrics and admin pages, configured by a
//! file, by the API server or over the configuration socket of `wg`.
//!
//! [`config`] is the checked configuration, [`service`] the control loop of a gateway, [`device`] a plain WireGuard
//! device. Nothing here is on the packet path; everything here may allocate, wait and log.

#![forbid(unsafe_code)]

pub mod admin;
mod background_reader;
pub mod check;
pub mod cluster;
pub mod config;
pub mod device;
mod device_state;
pub mod election;
pub mod explain;
pub mod flag_values;
mod forwarding;
pub mod lock_file;
mod metrics;
pub mod mtu;
mod own_key;
mod path_probes;
mod peer_paths;
mod reload;
mod resolver;
mod routes;
pub mod service;
pub mod show;
pub mod socket;
pub mod uapi;
