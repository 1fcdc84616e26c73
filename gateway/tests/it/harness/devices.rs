//! Two hosts with a WireGuard device each, and the programs that drive them.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use strait_lab::Namespace;
use strait_lab::Process;
use strait_lab::Scratch;
use strait_lab::netlink::{Via, connect};
use strait_lab::process::find;
use strait_lab::traffic::{Ping, PingReport};
use strait_lab::wait_until;
use strait_wg::PrivateKey;

use super::STRAIT;

/// Where both ends listen at first.
pub(crate) const PORT: u16 = 51820;

const PATIENCE: Duration = Duration::from_secs(5);

/// Who makes the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Maker {
    Native,
    Boringtun,
    WireguardGo,
}

/// A host with one device.
pub(crate) struct Host {
    pub(crate) namespace: Namespace,
    pub(crate) interface: String,
    pub(crate) key: PrivateKey,
    /// On the network between the hosts.
    pub(crate) underlay: IpAddr,
    /// On the device.
    pub(crate) inner: IpAddr,
    pub(crate) process: Option<Process>,
    /// What makes its devices, unless `wireguard-go` does.
    pub(crate) program: PathBuf,
}

/// Two of them, and a cable.
pub(crate) struct World {
    pub(crate) left: Host,
    pub(crate) right: Host,
    pub(crate) scratch: Scratch,
}

impl World {
    /// Hosts without devices.
    pub(crate) fn bare() -> Self {
        let (left, right) = (Host::new(1), Host::new(2));
        connect((&left.namespace, "cable"), (&right.namespace, "cable"), 1500).unwrap();
        for host in [&left, &right] {
            let net = format!("{}/24", host.underlay).parse().unwrap();
            host.namespace.add_address("cable", net).unwrap();
        }

        Self { left, right, scratch: Scratch::new().unwrap() }
    }

    /// Devices that know each other, with addresses and routes. Only the left one knows where the other
    /// one is.
    pub(crate) fn start(makers: [Maker; 2]) -> Self {
        let mut world = Self::bare();
        world.start_devices(makers);

        world
    }

    /// Those that [`start`](Self::start) is about.
    pub(crate) fn start_devices(&mut self, makers: [Maker; 2]) {
        let Self { left, right, scratch } = self;
        for (host, maker) in [(&mut *left, makers[0]), (&mut *right, makers[1])] {
            host.start(maker, scratch);
        }
        left.set_conf(scratch, right, Some(SocketAddr::new(right.underlay, PORT)));
        right.set_conf(scratch, left, None);
        for (host, other) in [(&*left, &*right), (&*right, &*left)] {
            host.connect_to(other);
        }
    }

    /// The left device ends, and `maker` makes one with the same key.
    pub(crate) fn restart_left(&mut self, maker: Maker) {
        let Self { left, right, scratch } = self;
        if let Some(process) = left.process.take() {
            process.stop().unwrap();
            wait_until("the device was gone", PATIENCE, || {
                Ok(!left.socket().exists() && !left.has_device())
            })
            .unwrap();
        }
        left.start(maker, scratch);
        left.set_conf(scratch, right, Some(SocketAddr::new(right.underlay, PORT)));
        left.connect_to(right);
    }

    /// From left to right, every 20 ms.
    pub(crate) fn ping(&self, count: u16) -> PingReport {
        self.pings(count).run(&self.left.namespace).unwrap()
    }

    /// No ping is lost.
    pub(crate) fn assert_talk(&self, count: u16) {
        let report = self.ping(count);

        let shown = [&self.left, &self.right].map(|host| host.strait(&["show", &host.interface]));
        assert!(report.is_perfect(), "{report:?}\n{}\n{}", shown[0], shown[1]);
    }

    pub(crate) fn pings(&self, count: u16) -> Ping {
        Ping { interval: Duration::from_millis(20), ..Ping::new(self.right.inner, count) }
    }

    /// Both programs end as they should.
    pub(crate) fn stop(mut self) {
        for host in [&mut self.left, &mut self.right] {
            if let Some(process) = host.process.take() {
                process.stop().unwrap();
                wait_until("the socket was gone", PATIENCE, || Ok(!host.socket().exists()))
                    .unwrap();
            }
        }
    }
}

impl Host {
    fn new(number: u8) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);

        Self {
            namespace: Namespace::new(format!("host-{number}")).unwrap(),
            // Sockets are in the file system, so the name must be ours alone.
            interface: format!("sd{}n{next}", std::process::id()),
            key: PrivateKey::generate(),
            underlay: IpAddr::from([192, 0, 2, number]),
            inner: IpAddr::from([10, 77, 0, number]),
            process: None,
            program: PathBuf::from(STRAIT),
        }
    }

    pub(crate) fn start(&mut self, maker: Maker, scratch: &Scratch) {
        let engine = match maker {
            Maker::Native => Some("native"),
            Maker::Boringtun => Some("boringtun"),
            Maker::WireguardGo => None,
        };
        let process = match engine {
            Some(engine) => {
                let words = ["device", "--foreground", "--engine", engine, &self.interface];
                self.spawn(&self.program, &words, scratch)
            }
            None => self.spawn(
                &find("wireguard-go").unwrap(),
                &["--foreground", &self.interface],
                scratch,
            ),
        };
        self.process = Some(process);
        wait_until("the device was ready", PATIENCE, || Ok(self.socket().exists())).unwrap();
    }

    fn spawn(&self, program: &Path, words: &[&str], scratch: &Scratch) -> Process {
        let log = scratch.path().join(format!("{}.log", self.interface));

        Process::start(&self.namespace, &self.interface, program, words, log).unwrap()
    }

    /// Address and route, and the device up.
    fn connect_to(&self, other: &Self) {
        self.namespace.add_address(&self.interface, self.inner.into()).unwrap();
        self.namespace.set_up_link(&self.interface).unwrap();
        self.namespace.add_route(other.inner.into(), &self.interface, Via::Link).unwrap();
    }

    /// `wg setconf`, with one peer.
    pub(crate) fn set_conf(&self, scratch: &Scratch, peer: &Self, endpoint: Option<SocketAddr>) {
        let endpoint = endpoint.map_or(String::new(), |at| format!("Endpoint = {at}\n"));
        let text = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = {PORT}\n[Peer]\nPublicKey = {}\n\
             AllowedIPs = {}/32\n{endpoint}",
            *self.key.to_base64(),
            peer.key.public_key(),
            peer.inner,
        );
        let file = scratch.write(&format!("{}.conf", self.interface), &text).unwrap();

        self.wg(&["setconf", &self.interface, file.to_str().unwrap()]);
    }

    /// `wg WORDS`, which must succeed; what it prints.
    pub(crate) fn wg(&self, words: &[&str]) -> String {
        succeeded(&self.run("wg", words), words)
    }

    /// `wg set DEVICE WORDS`.
    pub(crate) fn wg_set(&self, words: &[&str]) {
        let words = [&["set", self.interface.as_str()], words].concat();

        self.wg(&words);
    }

    /// `strait WORDS`, which must succeed; what it prints.
    pub(crate) fn strait(&self, words: &[&str]) -> String {
        succeeded(&self.run(STRAIT, words), words)
    }

    /// Any program, in the namespace of the host.
    pub(crate) fn run(&self, program: &str, words: &[&str]) -> Output {
        let mut command = Command::new(find(program).unwrap_or_else(|| PathBuf::from(program)));
        command.args(words);

        self.output(command)
    }

    pub(crate) fn output(&self, mut command: Command) -> Output {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());

        self.namespace.start(command).unwrap().wait_with_output().unwrap()
    }

    /// What a device answers to raw text, up to where it closes.
    pub(crate) fn say(&self, text: &str) -> String {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();

        answer
    }

    /// `wg show DEVICE dump`: the fields of the device, and those of each peer.
    pub(crate) fn dump(&self) -> Vec<Vec<String>> {
        let text = self.wg(&["show", &self.interface, "dump"]);

        text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        let directory = fs::canonicalize("/var/run").unwrap();

        directory.join("wireguard").join(format!("{}.sock", self.interface))
    }

    pub(crate) fn has_device(&self) -> bool {
        self.namespace.has_link(&self.interface).unwrap()
    }

    /// Waits until neither device nor socket is there.
    pub(crate) fn wait_for_end(&self) {
        let is_gone = || Ok(!self.has_device() && !self.socket().exists());

        wait_until("device and socket were gone", PATIENCE, is_gone).unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // A device in the background ends with its socket, also when a test has failed.
        let _ = fs::remove_file(self.socket());
    }
}

pub(crate) fn succeeded(output: &Output, words: &[&str]) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{words:?}: {out}{err}");

    out.into_owned()
}
