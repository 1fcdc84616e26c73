//! Connects two TCP connections.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::thread;

/// Copies what arrives on each of the two connections to the other, on threads that end with them.
pub(crate) fn relay(near: &TcpStream, far: &TcpStream) {
    for (from, to) in [(near, far), (far, near)] {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}
