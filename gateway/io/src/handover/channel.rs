//! The private channel from a process to the program that replaces it.
//!
//! One end of a pair of sockets outlives execve(2). Before, it gets one message: a header and the descriptors
//! (`SCM_RIGHTS`), of which the first is a memory file with the state. So nothing else outlives execve(2), and a program
//! that does not read the message loses nothing but the state.
//!
//! # What is protected
//!
//! The memory file has no name, is sealed against changes and against execution, and is never on a disk as a file. Its
//! content is encrypted with a key for this hand-over alone, which is in the message: in memory of the kernel, where no
//! process but this one can read it, and which is not swapped out. So the keys of sessions are not found in swap space,
//! nor by a process that can open descriptors of this process (`/proc/PID/fd`) but not read its memory. A process that can
//! trace this one can read its keys at any time; nothing is protected against that.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zeroize::Zeroizing;

use super::VERSION;
use crate::{clock, sys};
use strait_wg::handover::{HandoverError, Reader, SEAL_KEY_LEN, Writer, open, seal};
use strait_wg::native::Randomness;

/// The environment variable with the number of the channel's descriptor.
pub(super) const VARIABLE: &str = "STRAIT_HANDOVER_FD";

/// The beginning of the message.
const MAGIC: &[u8; 8] = b"strait/h";

/// Length of the message: magic, version, base of time, key.
const MESSAGE_LEN: usize = 8 + 4 + 12 + SEAL_KEY_LEN;

/// The most descriptors of one message, from the kernel's `SCM_MAX_FD`.
const DESCRIPTORS_MAX: usize = 253;

/// The most bytes of a state: more than that of a hundred thousand peers.
const STATE_MAX: u64 = 1 << 30;

/// The program that replaces this process.
#[derive(Clone, Debug)]
pub struct Successor {
    /// Its file.
    pub program: PathBuf,
    /// Its arguments, the name of the program first.
    pub arguments: Vec<OsString>,
}

/// What arrived over the channel.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) state: Zeroizing<Vec<u8>>,
    /// Instants in the state are since then.
    pub(super) base: Instant,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// Puts `state`, with instants since `base`, and `descriptors` into a new channel. Returns its other end.
///
/// # Errors
///
/// Those of the system calls.
pub(super) fn send(
    mut state: Zeroizing<Vec<u8>>,
    base: Instant,
    descriptors: &[BorrowedFd<'_>],
    randomness: &Randomness,
) -> io::Result<OwnedFd> {
    let mut key = Zeroizing::new([0; SEAL_KEY_LEN]);
    randomness(&mut *key);
    let tag = seal(&key, &mut state).map_err(io::Error::other)?;
    let file = memory_file()?;
    (&file).write_all(&state)?;
    (&file).write_all(&tag)?;
    fcntl_add_seals(
        &file,
        SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
    )?;

    let mut message = Writer::new(base);
    message.put(MAGIC);
    message.u32(VERSION);
    message.duration(clock::uptime_at(base));
    message.put(&*key);
    let message = message.finish();
    let (ours, theirs) = UnixStream::pair()?;
    let all: Vec<_> = [file.as_fd()].into_iter().chain(descriptors.iter().copied()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&all)) {
        return Err(io::Error::other("more descriptors than one message carries"));
    }
    sendmsg(&ours, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL)?;

    Ok(theirs.into())
}

/// An anonymous file in memory, which cannot be executed where the kernel knows how to forbid that (Linux 6.3).
fn memory_file() -> io::Result<File> {
    let create = |more| memfd_create("strait-handover", MemfdFlags::CLOEXEC | more);
    let file = match create(MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => create(MemfdFlags::ALLOW_SEALING),
        other => other,
    };

    Ok(file?.into())
}

/// Replaces this process by `successor`, which gets `channel`. Returns only if that fails: then nothing has changed.
pub(super) fn exec(successor: &Successor, channel: &OwnedFd) -> io::Error {
    let mut arguments = successor.arguments.iter();
    let mut command = Command::new(&successor.program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command.args(arguments).env(VARIABLE, channel.as_raw_fd().to_string());
    if let Err(error) = fcntl_setfd(channel, FdFlags::empty()) {
        return error.into();
    }

    // A signal that arrives before the successor handles it must not end it.
    let former = sys::ignore_hangup_and_usr2();
    let error = command.exec();
    sys::restore_signals(former);

    error
}

/// Receives what the predecessor of this process has sent. `None` if there was none.
///
/// # Errors
///
/// [`HandoverError`] if it was not sent by [`send`] of this version.
pub(super) fn receive() -> Result<Option<Received>, HandoverError> {
    sys::take_inherited(VARIABLE).map(|channel| receive_from(&channel)).transpose()
}

fn receive_from(channel: &OwnedFd) -> Result<Received, HandoverError> {
    let mut message = Zeroizing::new([0; MESSAGE_LEN]);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(channel, &mut [IoSliceMut::new(&mut *message)], &mut control, flags);
    let len = received.map_err(|_| HandoverError::Incomplete)?.bytes;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    let mut descriptors = descriptors.into_iter();

    let now = clock::now();
    let mut message = Reader::new(message.get(..len).unwrap_or_default(), now);
    if message.array()? != MAGIC {
        return Err(HandoverError::Invalid("beginning"));
    }
    let found = message.u32()?;
    if found != VERSION {
        return Err(HandoverError::Version { found, known: VERSION });
    }
    let base = read_base(&mut message)?;
    let key = message.array()?;
    let file = File::from(descriptors.next().ok_or(HandoverError::Incomplete)?);
    let state = open(key, read_all(&file).map_err(|_| HandoverError::Incomplete)?)?;

    Ok(Received { state, base, descriptors: descriptors.collect() })
}

fn read_base(message: &mut Reader<'_>) -> Result<Instant, HandoverError> {
    let uptime: Duration = message.duration()?;

    clock::at_uptime(uptime).ok_or(HandoverError::Invalid("base of time"))
}

fn read_all(file: &File) -> io::Result<Zeroizing<Vec<u8>>> {
    let len = file.metadata()?.len();
    if len > STATE_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut content = Zeroizing::new(vec![0; len]);
    file.read_exact_at(&mut content, 0)?;

    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, Write as _};

    use super::*;

    /// Not random, but a test needs no secret.
    fn randomness(bytes: &mut [u8]) {
        bytes.fill(7);
    }

    #[test]
    fn a_state_arrives_with_its_descriptors() {
        let state = vec![5; 300_000];
        let base = clock::now();
        let mut file = memory_file().unwrap();
        file.write_all(b"content").unwrap();
        file.rewind().unwrap();

        let channel =
            send(Zeroizing::new(state.clone()), base, &[file.as_fd(); 40], &randomness).unwrap();
        drop(file);
        let mut received = receive_from(&channel).unwrap();

        assert_eq!((*received.state == state, received.base), (true, base));
        assert_eq!(received.descriptors.len(), 40);
        let mut content = String::new();
        File::from(received.descriptors.remove(39)).read_to_string(&mut content).unwrap();
        assert_eq!(content, "content");
        assert_eq!(receive_from(&channel).unwrap_err(), HandoverError::Incomplete);
    }

    #[test]
    fn the_state_is_sealed_and_encrypted() {
        let secret = [9; 64];
        let channel =
            send(Zeroizing::new(secret.to_vec()), clock::now(), &[], &randomness).unwrap();

        let mut message = [0; MESSAGE_LEN];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        recvmsg(
            &channel,
            &mut [IoSliceMut::new(&mut message)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
        .unwrap();
        let Some(RecvAncillaryMessage::ScmRights(mut descriptors)) = control.drain().next() else {
            panic!("there is a descriptor");
        };
        let file = File::from(descriptors.next().unwrap());
        let content = read_all(&file).unwrap();

        assert!(!content.windows(8).any(|window| secret.starts_with(window)));
        assert!((&file).write_all(b"x").is_err() && file.set_len(1).is_err());
    }

    #[test]
    fn another_message_is_refused() {
        for (message, error) in [
            (&b"short"[..], HandoverError::Incomplete),
            (&[0; MESSAGE_LEN][..], HandoverError::Invalid("beginning")),
            (
                &[&MAGIC[..], &[0, 0, 0, 99], &[0; MESSAGE_LEN - 12]].concat(),
                HandoverError::Version { found: 99, known: VERSION },
            ),
            (
                &[&MAGIC[..], &VERSION.to_be_bytes(), &[0; MESSAGE_LEN - 12]].concat(),
                HandoverError::Incomplete,
            ),
        ] {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            ours.write_all(message).unwrap();

            assert_eq!(receive_from(&theirs.into()).unwrap_err(), error);
        }
    }
}
