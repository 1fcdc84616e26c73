//! The output of the commands for two clusters, as in the documentation.

/// As in the documentation, with the names of these clusters.
pub const CONNECTED: [&str; 23] = [
    "(local) Network configuration correctly retrieved",
    "(remote) Network configuration correctly retrieved",
    "(local) Network configuration correctly set up",
    "(remote) Network configuration correctly set up",
    "(local) Configuration applied successfully",
    "(remote) Configuration applied successfully",
    "(remote) Gateway server template \"wireguard-server/liqo\" correctly checked",
    "(local) Gateway client template \"wireguard-client/liqo\" correctly checked",
    "(local) Network correctly initialized",
    "(remote) Network correctly initialized",
    "(remote) Gateway server correctly set up",
    "(remote) Gateway pod gw-rome is ready",
    "(remote) Gateway server Service created successfully",
    "(local) Gateway client correctly set up",
    "(local) Gateway pod gw-milan is ready",
    "(remote) Gateway server Secret created successfully",
    "(local) Public key correctly created",
    "(local) Gateway client Secret created successfully",
    "(remote) Public key correctly created",
    "(remote) Connection created successfully",
    "(local) Connection created successfully",
    "(local) Connection is established",
    "(remote) Connection is established",
];

/// The number of these lines before those of gateways.
pub const INITIALIZED: usize = 10;

/// The lines of `init` in the older documentation.
pub const INIT: [&str; 8] = [
    "(local) Cluster identity correctly retrieved",
    "(remote) Cluster identity correctly retrieved",
    "(local) Network configuration correctly retrieved",
    "(remote) Network configuration correctly retrieved",
    "(local) Network configuration correctly set up",
    "(remote) Network configuration correctly set up",
    "(local) Configuration applied successfully",
    "(remote) Configuration applied successfully",
];

/// The lines of `connect` with flags of that documentation.
pub fn connected_formerly() -> Vec<&'static str> {
    [&INIT[..2], &CONNECTED[INITIALIZED - 2..]].concat()
}
