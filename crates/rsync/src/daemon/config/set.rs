//! Sets the parameters of modules and the global ones (rsyncd.conf(5), "MODULE PARAMETERS").

use std::path::{Path, PathBuf};

use super::variables::{expand, is_of_connection, is_one_part, is_plain, of_environment};
use super::{Access, AuthUser, Config, Id, Module, Value, contents};
use crate::chmod::Chmod;
use crate::daemon::access::HostList;
use crate::daemon::auth::AuthDigest;
use crate::daemon::log::LogFormat;
use crate::daemon::socket_options::SocketOption;
use crate::filter::Filter;

/// A parameter as it was written.
#[derive(Debug, Clone)]
pub(super) struct Assignment {
    /// The name in lower case, without spaces.
    pub key: String,
    pub name: String,
    pub value: String,
}

impl Assignment {
    /// Whether "%" in the value has a meaning of its own, so that variables are not expanded.
    fn is_verbatim(&self) -> bool {
        self.key == "logformat"
    }

    fn is_command(&self) -> bool {
        matches!(self.key.as_str(), "earlyexec" | "pre-xferexec" | "post-xferexec")
    }
}

/// The filter rules of a module. They apply in the order of the manual, not in that of the lines. Of each kind the last
/// line counts.
#[derive(Debug, Clone, Default)]
struct Rules {
    filter: String,
    include_from: Option<PathBuf>,
    include: String,
    exclude_from: Option<PathBuf>,
    exclude: String,
}

/// A module that is being read, or the defaults for modules.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    module: Module,
    rules: Rules,
    /// All parameters so far, for modules that use variables of connections.
    said: Vec<Assignment>,
}

impl Draft {
    /// The defaults when no parameter is set.
    pub(super) fn new() -> Self {
        Self { module: Module::new(""), rules: Rules::default(), said: Vec::new() }
    }

    /// A module with this name that begins with these parameters.
    pub(super) fn named(&self, name: &str) -> Self {
        let mut draft = self.clone();
        name.clone_into(&mut draft.module.name);
        draft
    }

    /// Sets a parameter. Returns false if the parameter is not known.
    ///
    /// # Errors
    /// When the value is invalid.
    pub(super) fn take(&mut self, assignment: Assignment) -> Value<bool> {
        let taken = self.set_expanded(&assignment, &|name| Ok(of_environment(name)))?;
        if taken {
            self.said.push(assignment);
        }
        Ok(taken)
    }

    fn set_expanded(
        &mut self,
        assignment: &Assignment,
        look: &dyn Fn(&str) -> Value<Option<String>>,
    ) -> Value<bool> {
        let value = match assignment.is_verbatim() {
            true => assignment.value.as_str().into(),
            false => expand(&assignment.value, look)?,
        };
        set(&mut self.module, &mut self.rules, &assignment.key, &value)
    }

    /// The finished module.
    ///
    /// # Errors
    /// When its parameters do not fit together.
    pub(super) fn finish(self) -> Value<Module> {
        let Self { mut module, rules, said } = self;
        add_rules(&mut module.hidden, &rules)?;
        module.check()?;
        if said.iter().any(|assignment| !assignment.is_verbatim() && is_of_connection(&assignment.value)) {
            module.said = Some(said.into());
        }
        Ok(module)
    }
}

/// The module for a connection. `look` returns the value of a variable of the connection.
///
/// # Errors
/// When the value of a variable is not allowed where it is used, or the resulting module is invalid.
pub(super) fn for_connection(module: &Module, look: &dyn Fn(&str) -> Option<String>) -> Value<Module> {
    let said = module.said.as_deref().unwrap_or_default();
    let mut draft = Draft::new().named(&module.name);
    let mut module_path = None;
    // The path is first, because other values may use it.
    let (paths, others): (Vec<_>, Vec<_>) = said.iter().partition(|assignment| assignment.key == "path");
    for (at, assignment) in paths.iter().chain(&others).enumerate() {
        if at == paths.len() {
            module_path = Some(draft.module.path.clone());
        }
        let look = |name: &str| {
            let value = match name {
                "RSYNC_MODULE_PATH" => module_path.clone(),
                _ => look(name),
            };
            if let Some(value) = &value {
                match assignment.is_command() {
                    true => is_plain(name, value)?,
                    false => {
                        is_one_part(name, value).map_err(|what| format!("'{}': {what}", assignment.key))?
                    }
                }
            }
            Ok(value.or_else(|| of_environment(name)))
        };
        draft.set_expanded(assignment, &look)?;
    }
    draft.finish()
}

impl Config {
    /// Whether a parameter is global.
    pub(super) fn is_global(key: &str) -> bool {
        GLOBAL.contains(&key)
    }

    /// Sets a global parameter. Returns false if it is not one.
    pub(super) fn set(&mut self, Assignment { key, value, .. }: &Assignment) -> Value<bool> {
        let value = &*expand(value, |name| Ok(of_environment(name)))?;
        match key.as_str() {
            "motdfile" => self.motd_file = file(value),
            "address" | "bindaddress" => self.address = Some(value.to_owned()).filter(|it| !it.is_empty()),
            "port" | "rsyncport" => self.port = Some(number(value)?),
            "pidfile" => self.pid_file = file(value),
            "listenbacklog" => self.listen_backlog = Some(number(value)?),
            "maxconnectionsperaddress" => self.max_connections_per_address = number(value)?,
            "proxyprotocol" => self.proxy_protocol = boolean(value)?,
            "proxyprotocolhosts" => self.proxy_protocol_hosts = Some(HostList::parse(words(value))?),
            "socketoptions" => self.socket_options = SocketOption::parse_all(value, &mut self.warnings),
            "daemonuid" => self.confinement.uid = named(value),
            "daemongid" => self.confinement.gid = named(value),
            "daemonchroot" => self.confinement.chroot = file(value),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Applies parameters of modules that stand before all modules, as far as they matter before a module is chosen.
    pub(super) fn note(&mut self, Assignment { key, value, .. }: &Assignment) -> Value<()> {
        let expanded = || expand(value, |name| Ok(of_environment(name)));
        match key.as_str() {
            "logfile" => self.log_file = log_file(&expanded()?),
            "syslogfacility" => self.syslog_facility = Some(expanded()?.to_lowercase()),
            "syslogtag" => self.syslog_tag = named(&expanded()?),
            _ => {}
        }
        Ok(())
    }
}

fn named(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_owned())
}

/// The global parameters.
const GLOBAL: [&str; 14] = [
    "address",
    "bindaddress",
    "daemonchroot",
    "daemongid",
    "daemonuid",
    "listenbacklog",
    "maxconnectionsperaddress",
    "motdfile",
    "pidfile",
    "port",
    "proxyprotocol",
    "proxyprotocolhosts",
    "rsyncport",
    "socketoptions",
];

fn boolean(text: &str) -> Value<bool> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "true" | "1" | "on" => Ok(true),
        "no" | "false" | "0" | "off" => Ok(false),
        _ => Err(format!("'{text}' is neither yes nor no")),
    }
}

/// A boolean that may be unset.
fn three(text: &str) -> Value<Option<bool>> {
    if text == "-1" || text.eq_ignore_ascii_case("unset") { Ok(None) } else { boolean(text).map(Some) }
}

fn number<T: std::str::FromStr>(text: &str) -> Value<T> {
    text.parse().map_err(|_| format!("'{text}' is no number that can be used here"))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split([' ', '\t', ',']).filter(|word| !word.is_empty())
}

/// The names of a list. In a list that begins with a comma, only commas separate names, so that names can have spaces.
pub(in super::super) fn names(text: &str) -> impl Iterator<Item = &str> {
    let ends: &[char] = if text.starts_with(',') { &[','] } else { &[' ', '\t', ','] };
    text.split(ends).map(str::trim).filter(|name| !name.is_empty())
}

/// Sets a parameter of a module. Returns false if it is not known.
fn set(module: &mut Module, rules: &mut Rules, key: &str, value: &str) -> Value<bool> {
    let hosts = |value: &str| HostList::parse(words(value)).map(Some);
    match key {
        "path" => module.path = trimmed_path(value),
        "index" => module.index = Some(value.into()),
        "realpath" => module.real_path = Some(value.into()),
        "realfileprefix" => module.real_file_prefix = Some(value.into()),
        "reverselookup" => module.reverse_lookup = boolean(value)?,
        "forwardlookup" => module.forward_lookup = boolean(value)?,
        "comment" => module.comment = value.to_owned(),
        "list" => module.list = boolean(value)?,
        "maxconnections" => {
            let count: i64 = number(value)?;
            module.is_disabled = count < 0;
            module.max_connections = usize::try_from(count).unwrap_or(0);
        }
        "hostsallow" => module.hosts_allow = hosts(value)?,
        "hostsdeny" => module.hosts_deny = hosts(value)?,
        "authusers" => module.auth_users = names(value).map(auth_user).collect::<Value<_>>()?,
        "authdigest" => {
            module.auth_digest = AuthDigest::named(value);
            // With an unknown digest nobody can log in.
            module.unknown_digest = named(value).filter(|_| module.auth_digest.is_none());
        }
        "secretsfile" => module.secrets_file = Some(value.into()),
        "strictmodes" => module.strict_modes = boolean(value)?,
        "uid" => module.uid = Id::Named(value.to_owned()),
        "gid" => module.gid = Id::Named(value.to_owned()),
        "numericids" => module.numeric_ids = three(value)?.unwrap_or(false),
        "mungesymlinks" => module.munge_symlinks = three(value)?,
        "ignorenonreadable" => module.ignore_nonreadable = boolean(value)?,
        "ignoreerrors" => module.ignore_errors = boolean(value)?,
        "timeout" => module.timeout_seconds = number(value)?,
        "refuseoptions" => module.refuse_options = words(value).map(str::to_owned).collect(),
        "transferlogging" => module.transfer_logging = boolean(value)?,
        "logformat" => module.log_format = LogFormat::parse(value)?,
        "filter" => value.clone_into(&mut rules.filter),
        "exclude" => value.clone_into(&mut rules.exclude),
        "include" => value.clone_into(&mut rules.include),
        "excludefrom" => rules.exclude_from = file(value),
        "includefrom" => rules.include_from = file(value),
        "readonly" => module.read_only = boolean(value)?,
        "writeonly" => module.write_only = boolean(value)?,
        "keepsnapshots" => {
            let count: usize = number(value)?;
            if count == 0 {
                return Err("at least the newest snapshot stays: 'keep snapshots' is 1 or more".to_owned());
            }
            module.keep_snapshots = Some(count);
        }
        "incomingchmod" => module.incoming_chmod = Chmod::parse(value)?,
        "outgoingchmod" => module.outgoing_chmod = Chmod::parse(value)?,
        "earlyexec" => module.early_exec = command(value),
        "pre-xferexec" => module.pre_exec = command(value),
        "post-xferexec" => module.post_exec = command(value),
        // No client gets above the root of a module, with or without chroot(2).
        "usechroot" => module.use_chroot = three(value)?,
        "nameconverter" => module.name_converter = command(value),
        "logfile" => module.log_file = log_file(value),
        // As in rsync 3.5, no compressor changes its level from file to file. So it is either all files or none.
        "dontcompress" => module.dont_compress = words(value).any(|pattern| pattern == "*"),
        // Messages go to a file or to standard error, and clients cannot ask for more of them.
        "syslogfacility" | "syslogtag" | "maxverbosity" => {}
        // Without this file, connections are counted in this process only.
        "lockfile" => module.lock_file = file(value),
        // Used for directories only. What is received into a dataset becomes visible when it is complete, so it needs
        // no temporary directory.
        "tempdir" => module.temp_dir = Some(value.to_owned()).filter(|path| !path.is_empty()),
        "fakesuper" => module.fake_super = boolean(value)?,
        "insecurelinks" => module.insecure_links = boolean(value)?,
        // Files are read through descriptors, and the mount options decide about access times.
        "opennoatime" => drop(three(value)?),
        // Names are bytes here, and --iconv is refused.
        "charset" => {}
        _ => return Ok(false),
    }
    Ok(true)
}

fn file(value: &str) -> Option<PathBuf> {
    (!value.is_empty()).then(|| value.into())
}

fn log_file(value: &str) -> Option<PathBuf> {
    file(value)
}

fn trimmed_path(path: &str) -> String {
    match path.trim_end_matches('/') {
        "" => path.to_owned(),
        trimmed => trimmed.to_owned(),
    }
}

/// The command, or `None` for an empty value. A module can so clear a command that stands before all modules.
fn command(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn auth_user(text: &str) -> Value<AuthUser> {
    let (name, what) = text.split_once(':').map_or((text, None), |(name, what)| (name, Some(what)));
    let access = match what {
        None => None,
        Some("deny") => Some(Access::Denied),
        Some("ro") => Some(Access::Read),
        Some("rw") => Some(Access::ReadWrite),
        Some(_) => return Err(format!("'{text}': only :deny, :ro and :rw can follow a name")),
    };
    Ok(AuthUser { name: name.to_owned(), access })
}

fn add_rules(hidden: &mut Filter, rules: &Rules) -> Value<()> {
    // Several rules may stand on one line. Each begins with its kind.
    let mut rest = rules.filter.trim();
    while !rest.is_empty() {
        let (kind, after) =
            rest.split_once([' ', '_']).ok_or_else(|| format!("'{rest}' is no filter rule"))?;
        let after = after.trim_start();
        let (pattern, after) = after.split_once(' ').unwrap_or((after, ""));
        match kind {
            "merge" | "." => add_file(hidden, Path::new(pattern), None)?,
            "merge,-" | ".-" => add_file(hidden, Path::new(pattern), Some(false))?,
            "merge,+" | ".+" => add_file(hidden, Path::new(pattern), Some(true))?,
            _ => hidden.add(format!("{kind} {pattern}").as_bytes()).map_err(|error| error.to_string())?,
        }
        rest = after.trim_start();
    }
    for (file, patterns, include) in
        [(&rules.include_from, &rules.include, true), (&rules.exclude_from, &rules.exclude, false)]
    {
        if let Some(file) = file {
            add_file(hidden, file, Some(include))?;
        }
        let mut words = patterns.split_whitespace();
        while let Some(word) = words.next() {
            // A pattern may have its own kind: "+ /a", "- /b".
            match (word, words.clone().next()) {
                ("+" | "-", Some(pattern)) => {
                    words.next();
                    hidden.add_pattern(pattern.as_bytes(), word == "+");
                }
                _ => hidden.add_pattern(word.as_bytes(), include),
            }
        }
    }
    Ok(())
}

/// Adds the lines of a file. They are patterns of the kind in `include`, unless they name another kind. Without
/// `include` they are whole rules.
fn add_file(hidden: &mut Filter, file: &Path, include: Option<bool>) -> Value<()> {
    let text = contents(file).map_err(|error| error.to_string())?;
    for line in text.split(|byte| matches!(byte, b'\n' | b'\r')) {
        match (line, include) {
            ([] | [b'#' | b';', ..], _) => {}
            ([b'+' | b'-', b' ', ..], _) | (_, None) => {
                hidden.add_merged(line).map_err(|error| error.to_string())?
            }
            (_, Some(include)) => hidden.add_pattern(line, include),
        }
    }
    Ok(())
}
