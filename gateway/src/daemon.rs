//! The long-lived process around the packet engine: command line, configuration, routes, metrics.
//!
//! [`args`] is what was typed, [`config`] what it means, [`service`] the process that runs it.
//! Nothing here is on the packet path; everything here may allocate, wait and log.

pub(crate) mod admin;
pub(crate) mod args;
pub(crate) mod check;
pub(crate) mod cluster;
pub(crate) mod commands;
pub(crate) mod config;
pub(crate) mod connections;
pub(crate) mod crds;
pub(crate) mod demo;
pub(crate) mod device;
pub(crate) mod device_state;
pub(crate) mod election;
pub(crate) mod explain;
pub(crate) mod given;
pub(crate) mod http;
pub(crate) mod key;
pub(crate) mod limits;
pub(crate) mod logging;
pub(crate) mod metrics;
pub(crate) mod mtu;
pub(crate) mod netlink;
pub(crate) mod node;
pub(crate) mod operator;
pub(crate) mod output;
pub(crate) mod own_key;
pub(crate) mod reading;
pub(crate) mod reload;
pub(crate) mod resolver;
pub(crate) mod routes;
pub(crate) mod service;
pub(crate) mod show;
pub(crate) mod signals;
pub(crate) mod socket;
pub(crate) mod stdout;
pub(crate) mod uapi;
pub(crate) mod usage;
mod vmclock;
mod ways;
