//! Remains of secrets in memory after their use: on the stack, in freed memory, anywhere.
//!
//! The tests search all writable memory of the process. The secrets that they search for are kept masked.

use std::cell::RefCell;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::sync::Mutex;
use std::thread;

use super::*;
use crate::native::handshake::Session;

/// Bytes that are read at a time.
const CHUNK_LEN: usize = 1 << 12;

const MASK: u8 = 0xa5;

/// A read buffer, in pages of its own.
#[repr(align(4096))]
struct Buffer([u8; 2 * CHUNK_LEN]);

static BUFFER: Mutex<Buffer> = Mutex::new(Buffer([0; 2 * CHUNK_LEN]));

/// A masked secret to search for. Without its first and last byte, which clamping changes.
struct MaskedSecret([u8; LEN - 2]);

impl MaskedSecret {
    fn new(secret: &[u8]) -> Self {
        let mut masked = [0; LEN - 2];
        for (masked, byte) in masked.iter_mut().zip(&secret[1..]) {
            *masked = byte ^ MASK;
        }

        Self(masked)
    }

    fn count_in(&self, bytes: &[u8]) -> usize {
        let is_here = |window: &&[u8]| window.iter().zip(&self.0).all(|(a, b)| a ^ MASK == *b);

        bytes.windows(self.0.len()).filter(is_here).count()
    }
}

/// How often each secret is in the writable memory of this process.
fn occurrences(secrets: &[MaskedSecret]) -> Vec<usize> {
    let overlap = LEN - 3;
    let mut counts = vec![0; secrets.len()];
    let mut buffer = BUFFER.lock().unwrap();
    let Buffer(buffer) = &mut *buffer;
    let [own_start, own_deadline] = [0, buffer.len()].map(|at| as_u64(buffer.as_ptr().addr() + at));
    let memory = File::open("/proc/self/mem").unwrap();
    for line in fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let mut words = line.split_whitespace();
        let (range, rights) = (words.next().unwrap(), words.next().unwrap());
        if !rights.starts_with("rw") {
            continue;
        }
        let (start, end) = range.split_once('-').unwrap();
        let [start, end] = [start, end].map(|digits| u64::from_str_radix(digits, 16).unwrap());
        for at in (start..end).step_by(CHUNK_LEN) {
            let len = usize::try_from(end - at).unwrap().min(CHUNK_LEN);
            // The buffer itself holds what was read before.
            if at < own_deadline && own_start < at + as_u64(len) {
                continue;
            }
            // Another test may unmap it meanwhile.
            if memory.read_exact_at(&mut buffer[overlap..overlap + len], at).is_err() {
                break;
            }
            for (count, secret) in counts.iter_mut().zip(secrets) {
                *count += secret.count_in(&buffer[..overlap + len]);
            }
            buffer.copy_within(len..len + overlap, 0);
        }
        buffer.fill(0);
    }

    counts
}

/// A pair with secrets of its own, and its random secrets in the order in which they are made.
fn pair(preshared: Option<[u8; 32]>) -> (Pair, Arc<Mutex<Vec<MaskedSecret>>>) {
    let made = Arc::new(Mutex::new(Vec::new()));
    let environment = |now| {
        let environment = Environment::new(Epoch::new(now, Duration::from_secs(1)), MTU);
        let (randomness, made) = (environment.randomness, Arc::clone(&made));
        let randomness = move |bytes: &mut [u8]| {
            randomness(bytes);
            if bytes.len() == LEN {
                made.lock().unwrap().push(MaskedSecret::new(bytes));
            }
        };
        Environment { randomness: Arc::new(randomness), ..environment }
    };

    (Pair::in_environment(environment, [Native; 2], preshared), Arc::clone(&made))
}

thread_local! {
    /// The keys of all sessions made in this thread.
    static SESSION_KEYS: RefCell<Vec<MaskedSecret>> = const { RefCell::new(Vec::new()) };
}

/// Records the keys of each new session.
pub(in super::super) fn record_session_keys(session: &Session) {
    let keys = [&session.sending, &session.receiving].map(|key| MaskedSecret::new(&**key));
    SESSION_KEYS.with_borrow_mut(|all| all.extend(keys));
}

/// Runs `test` on the stack of another thread.
fn in_thread(test: impl FnOnce() + Send + 'static) {
    thread::spawn(test).join().unwrap();
}

#[test]
fn the_search_finds_a_secret() {
    in_thread(|| {
        let mut secret = Box::new([0; LEN]);
        (Environment::new(Epoch::new(start(), Duration::ZERO), MTU).randomness)(&mut *secret);
        let secrets = [MaskedSecret::new(&*secret)];

        assert!(occurrences(&secrets)[0] > 0);
        secret.fill(0);
        assert_eq!(occurrences(&secrets), [0]);
    });
}

#[test]
fn our_key_has_no_stray_copies() {
    in_thread(|| {
        let environment = Environment::new(Epoch::new(start(), Duration::ZERO), MTU);
        let mut bytes = Box::new([0; LEN]);
        (environment.randomness)(&mut *bytes);
        let secrets = [MaskedSecret::new(&*bytes)];
        let key = PrivateKey::from_bytes(&bytes).unwrap();
        bytes.fill(0);

        let identity = NativeIdentity::new(&key, environment);
        let peer =
            PeerKeys { public_key: PrivateKey::generate().public_key(), preshared_key: None };
        let tunnel = identity.tunnel(&peer, IndexSlot::from(1));
        let path = SocketAddr::from(([192, 0, 2, 1], 1)).into();
        tunnel.initiate(path, &mut TransmitBatch::default(), start());

        assert_eq!(occurrences(&secrets), [2]);
        drop(key);
        assert_eq!(occurrences(&secrets), [1]);
        drop((identity, tunnel));
        assert_eq!(occurrences(&secrets), [0]);
    });
}

#[test]
fn a_handshake_and_its_session_leave_no_secrets() {
    in_thread(|| {
        let (pair, ephemerals) = pair(Some([7; 32]));
        assert_eq!(pair.exchange(0, pair.send(0, &packet(0))), [packet(0)]);
        let session_keys = SESSION_KEYS.take();
        let ephemerals = ephemerals.lock().unwrap();
        assert_eq!((ephemerals.len(), session_keys.len()), (2, 4));

        assert_eq!(occurrences(&ephemerals), [0; 2]);
        // One end sends with each key, the other receives: in the library and, where supported, in lanes. In the release
        // build there are more copies in the unused part of the library's type.
        let copies = if Lanes::detect().is_some() { 4 } else { 2 };
        assert!(occurrences(&session_keys).iter().all(|&found| found >= copies));
        drop(pair);
        assert_eq!(occurrences(&session_keys), [0; 4]);
    });
}

#[test]
fn an_abandoned_handshake_leaves_no_secrets() {
    in_thread(|| {
        let (mut pair, ephemerals) = pair(None);
        let initiation = pair.send(0, &packet(0));
        let repeated = {
            pair.tick(Duration::from_secs(6));
            pair.timers(0)
        };
        assert_eq!((initiation.len(), repeated.len()), (1, 1));
        // The other end has read its sender only.
        let path = pair.ends[0].address.into();
        let known =
            pair.ends[1].identity.identify(&repeated[0], path, &mut TransmitBatch::default());
        assert!(matches!(known, Ok(Identification::Peer(_))));

        let ephemerals = ephemerals.lock().unwrap();
        assert_eq!(occurrences(&ephemerals), [1; 2], "kept for the response");
        pair.tick(Duration::from_secs(100));
        pair.timers(0);
        assert_eq!(occurrences(&ephemerals), [0; 2]);
    });
}
