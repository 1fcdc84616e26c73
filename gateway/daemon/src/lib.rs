//! A gateway or a device that runs: configuration, reload, names, routes, metrics and admin pages, fed by a file, by
//! the API server or over the configuration socket of `wg`.
//!
//! [`config`] is what a file or flags mean, [`service`] the control loop of a gateway, [`device`] a plain WireGuard
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
mod metrics;
pub mod mtu;
mod own_key;
mod peer_paths;
mod reload;
mod resolver;
mod routes;
pub mod service;
pub mod show;
pub mod socket;
pub mod uapi;
