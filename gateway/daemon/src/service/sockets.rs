//! The sockets of a gateway, which follow the name of its device.

use tracing::warn;

use crate::config::Config;
use crate::socket::Serving;
use crate::uapi;

/// The sockets that are named after the device.
#[derive(Debug, Default)]
pub struct Sockets {
    /// The socket of `strait explain`.
    pub admin: Option<Serving>,
    /// The socket of `wg show`.
    pub uapi: Option<Serving>,
}

impl Sockets {
    /// Renames the sockets after the new name of the device.
    pub(super) fn rename(&mut self, config: &Config) {
        let paths = [config.admin_socket_path(), Some(uapi::path(&config.interface))];
        for (socket, path) in [&mut self.admin, &mut self.uapi].into_iter().zip(paths) {
            if let (Some(socket), Some(path)) = (socket, path)
                && let Err(error) = socket.move_to(path.clone())
            {
                warn!(%error, path = %path.display(), "a socket keeps its name");
            }
        }
    }
}
