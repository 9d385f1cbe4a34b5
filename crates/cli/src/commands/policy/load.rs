//! The file with the policy.

use std::io::Read;
use std::path::{Path, PathBuf};

use snowmelt_policy::Config;

use crate::app::App;
use crate::error::{CliError, Result};

/// Larger files are no policies.
const LENGTH_MAX: u64 = 4 << 20;
/// Where Debian's sanoid has its defaults.
const SANOID_DEFAULTS: &str = "/usr/share/sanoid/sanoid.defaults.conf";

/// The file that counts: the one named, or the usual one.
pub(super) fn path(app: &App<'_>, named: Option<&Path>) -> PathBuf {
    match named {
        Some(path) => app.context.path(path),
        None => app.places.config_dir().join("policy.toml"),
    }
}

/// Reads it; what ends with `.conf` is sanoid's.
///
/// # Errors
/// When it cannot be read or understood.
pub(super) fn load(path: &Path) -> Result<Config> {
    let content = read(path)?;
    let name = path.display().to_string();
    let is_sanoid = path.extension().is_some_and(|extension| extension == "conf");
    let config = match is_sanoid {
        false => Config::from_toml(&name, &content),
        true => {
            let beside = path.with_file_name("sanoid.defaults.conf");
            let usual = PathBuf::from(SANOID_DEFAULTS);
            let defaults = [beside, usual].into_iter().find(|defaults| defaults.exists() && defaults != path);
            let defaults = defaults.map(|path| Ok::<_, CliError>((path.display().to_string(), read(&path)?)));
            let defaults = defaults.transpose()?;
            let defaults = defaults.as_ref().map(|(name, content)| (name.as_str(), content.as_str()));
            Config::from_sanoid(&name, &content, defaults)
        }
    };
    config.map_err(|error| CliError::Failed(error.to_string()))
}

fn read(path: &Path) -> Result<String> {
    let failed = |error: &std::io::Error| CliError::failed(format!("cannot read {}", path.display()), error);
    let file = std::fs::File::open(path).map_err(|error| failed(&error))?;
    let mut content = String::new();
    let length = file.take(LENGTH_MAX + 1).read_to_string(&mut content).map_err(|error| failed(&error))?;
    match length as u64 > LENGTH_MAX {
        true => Err(CliError::Failed(format!("{}: a policy can have at most 4 MiB", path.display()))),
        false => Ok(content),
    }
}
