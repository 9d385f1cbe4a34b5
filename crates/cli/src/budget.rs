//! The memory budget of this process: `--memory`, the variable SNOWMELT_MEMORY, or what suits the machine.

use snowmelt_dataset::property::{format_bytes, parse_size};
use snowmelt_pool::memory;

use crate::context::Context;
use crate::error::{CliError, Result};

/// Sets the limit. Child processes get it through this variable.
pub const VARIABLE: &str = "SNOWMELT_MEMORY";

/// Gives the process its budget, once.
///
/// # Errors
/// When the size is none, or too small to work with.
pub fn set(context: &Context, option: Option<&str>) -> Result<()> {
    let variable = context.env(VARIABLE).map(|value| value.to_string_lossy().into_owned());
    let (name, text) = match (option, variable) {
        (Some(text), _) => ("--memory", text.to_owned()),
        (None, Some(text)) => (VARIABLE, text),
        (None, None) => {
            memory::limit(memory::limit_for(of_machine()));
            return Ok(());
        }
    };
    let bytes = parse_size(&text).map_err(|error| CliError::Usage(format!("{name} {text}: {error}")))?;
    if bytes < memory::LIMIT_MIN {
        let least = format_bytes(memory::LIMIT_MIN);
        return Err(CliError::Usage(format!("{name} {text}: snowmelt needs at least {least}")));
    }
    memory::limit(bytes);
    Ok(())
}

/// The memory of the machine, or of the control group that this process is in, if that is less.
fn of_machine() -> u64 {
    let info = rustix::system::sysinfo();
    #[allow(clippy::useless_conversion, clippy::cast_lossless)] // its type depends on the architecture
    let machine = u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit));
    group_limit().map_or(machine, |limit| limit.min(machine))
}

/// `memory.max` of the control group (version 2): the limit of a container, or of a unit.
fn group_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut directory = std::path::Path::new("/sys/fs/cgroup").join(group);
    let mut least = None::<u64>;
    // Those above have limits too.
    while directory.starts_with("/sys/fs/cgroup") {
        let text = std::fs::read_to_string(directory.join("memory.max")).unwrap_or_default();
        let limit = text.trim().parse().ok();
        least = [least, limit].into_iter().flatten().min();
        if !directory.pop() {
            break;
        }
    }
    least
}
