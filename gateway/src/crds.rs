//! `strait crds`: prints or writes the custom resource definitions of the API.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use strait_api::crd;
use strait_host::stdout;

use super::args::CrdsArgs;

/// Runs `strait crds`.
///
/// # Errors
///
/// Errors of stdout or of the folder, with the path.
pub(crate) fn run(args: &CrdsArgs) -> anyhow::Result<ExitCode> {
    match &args.output {
        Some(folder) => write(folder)?,
        None => stdout::print(&stream()?)?,
    }

    Ok(ExitCode::SUCCESS)
}

/// All of them as one stream of documents.
fn stream() -> anyhow::Result<String> {
    let documents: Result<String, _> = crd::all().iter().map(crd::manifest).collect();

    Ok(documents?)
}

/// Writes each definition to a file.
fn write(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot create the folder {}", folder.display()))?;
    for definition in crd::all() {
        let path = folder.join(crd::file_name(&definition));
        fs::write(&path, crd::manifest(&definition)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }

    Ok(())
}
