//! The processes of a server, their credentials and their flags.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};

/// The token of the administrator of every server, which serves this test only.
pub(super) const TOKEN: &str = "strait-test-administrator";

/// In the folder of a server: the files of its etcd.
pub(super) const ETCD_FOLDER: &str = "etcd";

/// In the folder of a server with an audit log: which calls are logged, and where.
pub(super) const AUDIT_POLICY_FILE: &str = "audit-policy.yaml";
pub(super) const AUDIT_LOG: &str = "audit.log";

/// The part before the point in a `SubjectPublicKeyInfo` of the curve P-256 (RFC 5480 section 2).
const P256_PUBLIC_KEY: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// A user who may do everything, and the key that signs the tokens of service accounts.
pub(super) fn write_credentials(folder: &Path) {
    let random = ring::rand::SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
    let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
    let key = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).expect("that key");
    let public = [&P256_PUBLIC_KEY[..], key.public_key().as_ref()].concat();

    for (name, label, bytes) in [
        ("service-account.key", "PRIVATE KEY", document.as_ref()),
        ("service-account.pub", "PUBLIC KEY", &public),
    ] {
        let text = STANDARD.encode(bytes);
        let pem = format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n");
        fs::write(folder.join(name), pem).expect("a key file");
    }
    fs::write(folder.join("users.csv"), format!("{TOKEN},admin,admin,system:masters\n"))
        .expect("a token file");
}

pub(super) fn start_etcd(assets: &Path, folder: &Path, port: u16, peer_port: u16) -> Child {
    let (client, peer) =
        (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer_port}"));

    start(
        &assets.join("etcd"),
        folder,
        &[
            format!("--data-dir={}", folder.join(ETCD_FOLDER).display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--log-level=error".to_owned(),
            // The data need not survive a power failure.
            "--unsafe-no-fsync".to_owned(),
        ],
    )
}

pub(super) fn start_server(assets: &Path, folder: &Path, etcd_port: u16, port: u16) -> Child {
    let file = |name: &str| folder.join(name).display().to_string();
    let mut arguments = vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--cert-dir={}", file("certificates")),
        "--service-cluster-ip-range=10.0.0.0/20".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", file("service-account.pub")),
        format!("--service-account-signing-key-file={}", file("service-account.key")),
        format!("--token-auth-file={}", file("users.csv")),
        "--authorization-mode=RBAC".to_owned(),
        // The containers of Liqo's gateways are privileged.
        "--allow-privileged=true".to_owned(),
        // There is no controller that creates the account of a namespace.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
    ];
    if folder.join(AUDIT_POLICY_FILE).is_file() {
        arguments.push(format!("--audit-policy-file={}", file(AUDIT_POLICY_FILE)));
        arguments.push(format!("--audit-log-path={}", file(AUDIT_LOG)));
    }

    start(&assets.join("kube-apiserver"), folder, &arguments)
}

fn start(program: &Path, folder: &Path, arguments: &[String]) -> Child {
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let log = fs::File::create(folder.join(format!("{name}.log"))).expect("a log");

    Command::new(program)
        .args(arguments)
        // Collecting garbage is a third of what a server of a short test costs, and idle threads that look for work an
        // eighth: the other cores have other tests.
        .envs([("GOGC", "off"), ("GOMEMLIMIT", "512MiB"), ("GOMAXPROCS", "1")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

/// Free ports. They differ, as all are held until the last is chosen.
pub(super) fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));

    listeners.map(|listener| listener.local_addr().expect("an address").port())
}
