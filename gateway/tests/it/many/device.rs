//! A device that gets many peers over its socket, as `wg` does.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use strait_lab::Namespace;
use strait_lab::Process;
use strait_lab::Scratch;
use strait_lab::now;
use strait_lab::wait_until;
use strait_wg::PrivateKey;
use strait_wg::PublicKey;

use crate::many::hub::{Resident, many_prefixes, other_key, strait};

const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Device {
    process: Process,
    socket: PathBuf,
    _namespace: Namespace,
    _scratch: Scratch,
}

impl Device {
    /// With a key, and without peers.
    pub(crate) fn start() -> Self {
        // Sockets are in the file system, so the name must be ours alone.
        let interface = format!("sm{}", std::process::id());
        let (namespace, scratch) = (Namespace::new("device").unwrap(), Scratch::new().unwrap());
        let words = ["device", "--foreground", "--engine", "native", &interface];
        let log = scratch.path().join("device.log");
        let process = Process::start(&namespace, "a device", &strait(), words, log).unwrap();
        let socket = Path::new("/var/run/wireguard").join(format!("{interface}.sock"));
        wait_until("the device was ready", PATIENCE, || Ok(socket.exists())).unwrap();
        let device = Self { process, socket, _namespace: namespace, _scratch: scratch };
        device.say(&format!(
            "set=1\nprivate_key={}\n\n",
            hex(&PrivateKey::generate().to_bytes()[..])
        ));

        device
    }

    /// So many at once, each with an address.
    pub(crate) fn set_peers(&self, count: usize) -> Duration {
        let mut text = "set=1\n".to_owned();
        for number in 0..u32::try_from(count).unwrap() {
            let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 128, 0, 0).to_bits() + number);
            writeln!(text, "public_key={}\nallowed_ip={address}/32", key(number)).unwrap();
        }

        self.timed(&text).0
    }

    /// So many at once, each with all that `wg setconf` sends.
    pub(crate) fn set_configuration(&self, count: usize) -> Duration {
        let mut text = "set=1\nlisten_port=51820\nreplace_peers=true\n".to_owned();
        for number in 0..u32::try_from(count).unwrap() {
            let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 128, 0, 0).to_bits() + number);
            let (public_key, preshared_key) = (key(number), "07".repeat(32));
            write!(
                text,
                "public_key={public_key}\npreshared_key={preshared_key}\nreplace_allowed_ips=true\n\
                 allowed_ip={address}/32\nallowed_ip=fd00:77::{number:x}/128\n",
            )
            .unwrap();
        }

        self.timed(&text).0
    }

    /// The first of them gets another address.
    pub(crate) fn set_one(&self, address: Ipv4Addr) -> Duration {
        let peer = format!("set=1\npublic_key={}\nallowed_ip={address}/32\n", key(0));

        self.timed(&peer).0
    }

    /// One peer with so many of them.
    pub(crate) fn set_allowed_ips(&self, count: usize) -> Duration {
        let mut text = format!("set=1\npublic_key={}\n", key(0));
        for prefix in many_prefixes(count) {
            writeln!(text, "allowed_ip={prefix}").unwrap();
        }

        self.timed(&text).0
    }

    /// How long the answer takes, and its length.
    pub(crate) fn get(&self) -> (Duration, usize) {
        let (elapsed, answer) = self.timed("get=1\n");

        (elapsed, answer.len())
    }

    /// In bytes.
    pub(crate) fn resident(&self) -> Resident {
        Resident::of(&self.process)
    }

    pub(crate) fn stop(mut self) {
        fs::remove_file(&self.socket).unwrap();
        wait_until("the device ended", PATIENCE, || Ok(self.process.status()?.is_some())).unwrap();
    }

    fn timed(&self, request: &str) -> (Duration, String) {
        let request = format!("{request}\n");
        let start = now();
        let answer = self.say(&request);

        (start.elapsed(), answer)
    }

    fn say(&self, text: &str) -> String {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("errno=0\n\n"), "{}", &answer[answer.len().saturating_sub(200)..]);

        answer
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A device ends with its socket, also when a test has failed.
        let _ = fs::remove_file(&self.socket);
    }
}

fn key(number: u32) -> String {
    let key: PublicKey = other_key(number);

    hex(key.as_bytes())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
