//! What is left in memory of secrets that are used no more: on the stack, in what was freed, anywhere.
//!
//! The whole memory of the test is looked through. What is looked for is known masked only.

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

/// What was read, in pages of its own.
#[repr(align(4096))]
struct Buffer([u8; 2 * CHUNK_LEN]);

static BUFFER: Mutex<Buffer> = Mutex::new(Buffer([0; 2 * CHUNK_LEN]));

/// A secret that is nowhere in this. Scalars are clamped wherever they are used, which changes their first
/// and last bytes.
struct Sought([u8; LEN - 2]);

impl Sought {
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

/// How often each is in what this process may write.
fn occurrences(sought: &[Sought]) -> Vec<usize> {
    let overlap = LEN - 3;
    let mut counts = vec![0; sought.len()];
    let mut buffer = BUFFER.lock().unwrap();
    let Buffer(buffer) = &mut *buffer;
    let [own_start, own_end] = [0, buffer.len()].map(|at| as_u64(buffer.as_ptr().addr() + at));
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
            // What is read there is what was read before.
            if at < own_end && own_start < at + as_u64(len) {
                continue;
            }
            // Another test may give it back while it is looked at.
            if memory.read_exact_at(&mut buffer[overlap..overlap + len], at).is_err() {
                break;
            }
            for (count, sought) in counts.iter_mut().zip(sought) {
                *count += sought.count_in(&buffer[..overlap + len]);
            }
            buffer.copy_within(len..len + overlap, 0);
        }
        buffer.fill(0);
    }

    counts
}

/// A pair whose secrets no other test has, and those that are random, in the order in which they are made.
fn pair(preshared: Option<[u8; 32]>) -> (Pair, Arc<Mutex<Vec<Sought>>>) {
    let made = Arc::new(Mutex::new(Vec::new()));
    let surroundings = |now| {
        let surroundings = Surroundings::new(Epoch::new(now, Duration::from_secs(1)), MTU);
        let (randomness, made) = (surroundings.randomness, Arc::clone(&made));
        let randomness = move |bytes: &mut [u8]| {
            randomness(bytes);
            if bytes.len() == LEN {
                made.lock().unwrap().push(Sought::new(bytes));
            }
        };
        Surroundings { randomness: Arc::new(randomness), ..surroundings }
    };

    (Pair::within(surroundings, [Native; 2], preshared), Arc::clone(&made))
}

thread_local! {
    /// Of the sessions that were made in this thread.
    static SESSION_KEYS: RefCell<Vec<Sought>> = const { RefCell::new(Vec::new()) };
}

/// To be called with what each session is made of.
pub(in super::super) fn note(session: &Session) {
    let keys = [&session.sending, &session.receiving].map(|key| Sought::new(&**key));
    SESSION_KEYS.with_borrow_mut(|all| all.extend(keys));
}

/// Off the stack of whoever looks.
fn elsewhere(test: impl FnOnce() + Send + 'static) {
    thread::spawn(test).join().unwrap();
}

#[test]
fn what_is_in_memory_is_found() {
    elsewhere(|| {
        let mut secret = Box::new([0; LEN]);
        (Surroundings::new(Epoch::new(start(), Duration::ZERO), MTU).randomness)(&mut *secret);
        let sought = [Sought::new(&*secret)];

        assert!(occurrences(&sought)[0] > 0);
        secret.fill(0);
        assert_eq!(occurrences(&sought), [0]);
    });
}

#[test]
fn our_own_key_is_where_it_is_kept_and_nowhere_else() {
    elsewhere(|| {
        let surroundings = Surroundings::new(Epoch::new(start(), Duration::ZERO), MTU);
        let mut bytes = Box::new([0; LEN]);
        (surroundings.randomness)(&mut *bytes);
        let sought = [Sought::new(&*bytes)];
        let key = PrivateKey::from_bytes(&bytes).unwrap();
        bytes.fill(0);

        let identity = NativeIdentity::new(&key, surroundings);
        let peer =
            PeerKeys { public_key: PrivateKey::generate().public_key(), preshared_key: None };
        let tunnel = identity.tunnel(&peer, Slot::from(1));
        let path = SocketAddr::from(([192, 0, 2, 1], 1)).into();
        tunnel.initiate(path, &mut TransmitBatch::default(), start());

        assert_eq!(occurrences(&sought), [2]);
        drop(key);
        assert_eq!(occurrences(&sought), [1]);
        drop((identity, tunnel));
        assert_eq!(occurrences(&sought), [0]);
    });
}

#[test]
fn nothing_is_left_of_a_handshake_but_its_session_and_nothing_of_that_in_the_end() {
    elsewhere(|| {
        let (pair, ephemerals) = pair(Some([7; 32]));
        assert_eq!(pair.exchange(0, pair.send(0, &packet(0))), [packet(0)]);
        let session_keys = SESSION_KEYS.take();
        let ephemerals = ephemerals.lock().unwrap();
        assert_eq!((ephemerals.len(), session_keys.len()), (2, 4));

        // One end sends with it, and the other receives: each in the library and, if there are any, in lanes.
        let copies = if Lanes::detect().is_some() { 4 } else { 2 };
        assert_eq!(occurrences(&ephemerals), [0; 2]);
        assert_eq!(occurrences(&session_keys), [copies; 4]);
        drop(pair);
        assert_eq!(occurrences(&session_keys), [0; 4]);
    });
}

#[test]
fn nothing_is_left_of_a_handshake_that_is_given_up() {
    elsewhere(|| {
        let (mut pair, ephemerals) = pair(None);
        let initiation = pair.send(0, &packet(0));
        let repeated = {
            pair.tick(Duration::from_secs(6));
            pair.timers(0)
        };
        assert_eq!((initiation.len(), repeated.len()), (1, 1));
        // Half understood at the other end.
        let path = pair.ends[0].address.into();
        let known =
            pair.ends[1].identity.identify(&repeated[0], path, &mut TransmitBatch::default());
        assert!(matches!(known, Ok(Introduction::By(_))));

        let ephemerals = ephemerals.lock().unwrap();
        assert_eq!(occurrences(&ephemerals), [1; 2], "where they wait for an answer");
        pair.tick(Duration::from_secs(100));
        pair.timers(0);
        assert_eq!(occurrences(&ephemerals), [0; 2]);
    });
}
