//! A server with the definitions of the API, as the files of its etcd. To apply them costs as much as the rest of a short
//! test, so it is done once for a user of this machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ring::digest::{Context, SHA256};

use super::processes::ETCD_FOLDER;
use super::programs::cache;
use super::{ApiServer, assets, install_api};

/// Copies the files into the `folder` of a server that is not started yet. Returns whether there are such files: a machine
/// without a cache has none.
pub(super) async fn restore(folder: &Path) -> bool {
    let (Some(cache), Ok(assets)) = (cache(), assets()) else { return false };
    let snapshot = cache.join(format!("strait/etcd-{}", digest(assets).expect("definitions")));

    // Tests run in several processes. The lock ends with this function.
    fs::create_dir_all(cache.join("strait")).expect("a cache");
    let lock = fs::File::create(snapshot.with_extension("lock")).expect("a lock");
    lock.lock().expect("the lock");
    if !snapshot.is_dir() {
        let unfinished = snapshot.with_extension("unfinished");
        let _ = fs::remove_dir_all(&unfinished);
        make(&unfinished).await;
        fs::rename(&unfinished, &snapshot).expect("a snapshot");
    }
    copy(&snapshot, &folder.join(ETCD_FOLDER)).expect("a copy");

    true
}

/// Identifies the programs and the definitions, by the files in `deploy/crds`: to generate them from the code takes a
/// second. A test compares both.
fn digest(assets: &Path) -> io::Result<String> {
    let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds");
    let mut files = fs::read_dir(definitions)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()?;
    files.sort();
    let mut digest = Context::new(&SHA256);
    digest.update(assets.as_os_str().as_encoded_bytes());
    for file in files {
        digest.update(&fs::read(file)?);
    }

    Ok(digest.finish().as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

async fn make(path: &Path) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut server = ApiServer::start_in(folder).await.expect("a server");
    install_api(&server.client().await).await;
    server.kill();
    // Each server makes its own: the UID tells clusters apart.
    server.delete("/registry/namespaces/kube-system");
    server.etcd.kill().and_then(|()| server.etcd.wait()).expect("an end");
    copy(&server.folder.path().join(ETCD_FOLDER), path).expect("a copy");
}

/// Copies a folder without the zeros at the end of its files: etcd fills its log with 64 MB of them.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let copied: PathBuf = to.join(path.file_name().unwrap_or_default());
        match path.extension().and_then(|extension| extension.to_str()) {
            _ if path.is_dir() => copy(&path, &copied)?,
            // The next file of the log.
            Some("tmp") => {}
            Some("wal") => {
                let mut log = fs::read(&path)?;
                let len = log.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                // Records are multiples of eight bytes long.
                log.truncate(len.next_multiple_of(8));
                fs::write(&copied, log)?;
            }
            _ => {
                fs::copy(&path, &copied)?;
            }
        }
    }

    Ok(())
}
