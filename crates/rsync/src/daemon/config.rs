//! `rsyncd.conf`: what is served, to whom (rsyncd.conf(5)).

mod read;

use std::path::{Path, PathBuf};

use self::read::Reader;
use super::access::HostList;
use super::log::LogFormat;
use crate::chmod::Chmod;
use crate::filter::Filter;

/// Time of silence that ends a connection, if nobody says otherwise: one that is dead is not to keep its place for ever.
const TIMEOUT_SECONDS: u32 = 3600;

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is wrong.
    #[error("{}, line {line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from one.
        line: usize,
        /// What is wrong.
        what: String,
    },
}

/// A whole configuration.
#[derive(Debug, Default)]
pub struct Config {
    /// Told to everybody who connects.
    pub motd_file: Option<PathBuf>,
    /// Where to listen, if the command line does not say.
    pub address: Option<String>,
    /// Likewise.
    pub port: Option<u16>,
    /// The process number is written there.
    pub pid_file: Option<PathBuf>,
    /// What the server has to say goes there, if not to standard error.
    pub log_file: Option<PathBuf>,
    /// In the order of the file.
    pub modules: Vec<Module>,
}

/// Somebody who may log in, and as what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthUser {
    /// May have wildcards. After an `@` a group of this machine, which users of it are in.
    pub name: String,
    /// Without it, what the module says.
    pub access: Option<Access>,
}

/// What somebody may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Access {
    Denied,
    Read,
    ReadWrite,
}

/// Who the server is while it reads a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Id {
    /// As the manual says: nobody, if the server is root.
    Default,
    /// By name or number.
    Named(String),
}

/// A module.
#[derive(Debug, Clone)]
#[allow(missing_docs, clippy::struct_excessive_bools)]
pub struct Module {
    pub name: String,
    /// A directory ("/srv/a") or a dataset or snapshot ("tank/a", "tank/a@monday", "tank/a@" for the newest one).
    pub path: String,
    /// Files are listed by this index of the directory, which nothing else is then read for.
    pub index: Option<PathBuf>,
    /// Where the files of an index are, if not at the path.
    pub real_path: Option<PathBuf>,
    /// The path is of a tree of attributes, as rsync-huai has it; the files are there.
    pub real_file_prefix: Option<PathBuf>,
    pub comment: String,
    pub list: bool,
    /// 0 is no limit.
    pub max_connections: usize,
    /// A negative limit: nobody may connect.
    pub is_disabled: bool,
    pub hosts_allow: Option<HostList>,
    pub hosts_deny: Option<HostList>,
    pub read_only: bool,
    pub write_only: bool,
    /// Snapshots of pushes that stay, besides what the dataset's property says.
    pub keep_snapshots: Option<usize>,
    pub incoming_chmod: Chmod,
    pub outgoing_chmod: Chmod,
    /// Commands: before the request is read, before the transfer, and after it.
    pub early_exec: Option<String>,
    pub pre_exec: Option<String>,
    pub post_exec: Option<String>,
    pub auth_users: Vec<AuthUser>,
    pub secrets_file: Option<PathBuf>,
    pub strict_modes: bool,
    pub uid: Id,
    pub gid: Id,
    pub numeric_ids: bool,
    pub munge_symlinks: bool,
    pub ignore_errors: bool,
    /// What the user whom a module is read as may not read is not there.
    pub ignore_nonreadable: bool,
    pub timeout_seconds: u32,
    pub refuse_options: Vec<String>,
    pub hidden: Filter,
    pub transfer_logging: bool,
    pub log_format: LogFormat,
    /// Where what is said of transfers goes, if not to standard error.
    pub log_file: Option<PathBuf>,
    /// Compress as little as the method allows.
    pub dont_compress: bool,
}

impl Module {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            path: String::new(),
            index: None,
            real_path: None,
            real_file_prefix: None,
            comment: String::new(),
            list: true,
            max_connections: 0,
            is_disabled: false,
            hosts_allow: None,
            hosts_deny: None,
            read_only: true,
            write_only: false,
            keep_snapshots: None,
            incoming_chmod: Chmod::default(),
            outgoing_chmod: Chmod::default(),
            early_exec: None,
            pre_exec: None,
            post_exec: None,
            auth_users: Vec::new(),
            secrets_file: None,
            strict_modes: true,
            uid: Id::Default,
            gid: Id::Default,
            numeric_ids: false,
            munge_symlinks: false,
            ignore_errors: false,
            ignore_nonreadable: false,
            timeout_seconds: TIMEOUT_SECONDS,
            refuse_options: Vec::new(),
            hidden: Filter::default(),
            transfer_logging: false,
            log_format: LogFormat::default(),
            log_file: None,
            dont_compress: false,
        }
    }

    /// Where the files of a tree of attributes are: below the root that a path with `/./` tells, or else that of this machine.
    pub fn real_files(&self) -> Option<PathBuf> {
        let prefix = self.real_file_prefix.as_ref()?;
        let root = self.path.split_once("/./").map_or("/", |(root, _)| root);
        Some(Path::new(root).join(prefix.strip_prefix("/").unwrap_or(prefix)))
    }

    /// Whether it is a directory of this machine.
    pub fn is_directory(&self) -> bool {
        self.path.starts_with('/')
    }

    /// Whether it is a snapshot, or the newest one: those are never written to.
    pub fn is_snapshot(&self) -> bool {
        !self.is_directory() && self.path.contains('@')
    }

    /// Whether anybody may write to it, as far as it says itself.
    fn is_written(&self) -> bool {
        !self.read_only || self.auth_users.iter().any(|user| user.access == Some(Access::ReadWrite))
    }
}

/// Rules in the order in which they count, whatever that of the lines: as the manual has it.
#[derive(Debug, Clone, Default)]
struct Rules {
    filter: Vec<String>,
    include_from: Option<PathBuf>,
    include: Vec<String>,
    exclude_from: Option<PathBuf>,
    exclude: Vec<String>,
}

type Value<T> = std::result::Result<T, String>;

fn contents(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

fn boolean(text: &str) -> Value<bool> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "true" | "1" | "on" => Ok(true),
        "no" | "false" | "0" | "off" => Ok(false),
        _ => Err(format!("'{text}' is neither yes nor no")),
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Value<T> {
    text.parse().map_err(|_| format!("'{text}' is no number that can be used here"))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split([' ', '\t', ',']).filter(|word| !word.is_empty())
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or a line is wrong.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&contents(path)?, path)
    }

    /// Reads the text of a file, which `path` names in errors.
    ///
    /// # Errors
    /// When a line is wrong, or names a file that cannot be read.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let mut reader = Reader::new();
        reader.text(text, path)?;
        reader.end(text, path)
    }

    fn global(&mut self, key: &str, value: &str) -> Value<bool> {
        match key {
            "motdfile" => self.motd_file = Some(value.into()),
            "address" => self.address = Some(value.to_owned()),
            "port" => self.port = Some(number(value)?),
            "pidfile" => self.pid_file = Some(value.into()),
            // Of the modules as well, unless they say otherwise.
            "logfile" => {
                self.log_file = log_file(value);
                return Ok(false);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn finish(&mut self, (mut module, rules): (Module, Rules), defaults: &Rules) -> Value<()> {
        if module.path.is_empty() {
            return Err(format!("module '{}' has no path", module.name));
        }
        if !module.auth_users.is_empty() && module.secrets_file.is_none() {
            return Err(format!("module '{}' has auth users and no secrets file", module.name));
        }
        if module.is_directory() && module.is_written() {
            return Err(format!(
                "module '{}': only datasets are received into, and {} is a directory: 'read only' can only be yes, and no user's rule ':rw'",
                module.name, module.path
            ));
        }
        let has_owner = module.uid != Id::Default || module.gid != Id::Default;
        if !module.is_directory() && has_owner && !module.is_written() {
            return Err(format!(
                "module '{}': uid and gid are of directories, and of datasets that are written to: of a dataset everything is served",
                module.name
            ));
        }
        if module.keep_snapshots.is_some() && !module.is_written() {
            return Err(format!("module '{}': 'keep snapshots' is of what is written to only", module.name));
        }
        if module.index.is_some() && !module.is_directory() {
            return Err(format!("module '{}': a dataset needs no index", module.name));
        }
        if module.real_file_prefix.is_some() && (module.index.is_some() || !module.is_directory()) {
            return Err(format!(
                "module '{}': 'real file prefix' is of trees of attributes only",
                module.name
            ));
        }
        if module.real_path.is_some() && module.index.is_none() {
            return Err(format!("module '{}': 'real path' is of what has an index only", module.name));
        }
        for rules in [&rules, defaults] {
            add_rules(&mut module.hidden, rules)?;
        }
        if module.hidden.has_merges() {
            return Err(format!("module '{}': rules in files of directories are clients' only", module.name));
        }
        self.modules.push(module);
        Ok(())
    }

    /// A module by name.
    pub fn module(&self, name: &[u8]) -> Option<&Module> {
        self.modules.iter().find(|module| module.name.as_bytes() == name)
    }
}

fn is_module_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', ']', '[', '\n'])
}

fn set(module: &mut Module, rules: &mut Rules, key: &str, value: &str) -> Value<()> {
    let hosts = |value: &str| HostList::parse(words(value)).map(Some);
    match key {
        "path" => module.path = trimmed_path(value),
        "index" => module.index = Some(value.into()),
        "realpath" => module.real_path = Some(value.into()),
        "realfileprefix" => module.real_file_prefix = Some(value.into()),
        // Clients are known by their addresses only.
        "reverselookup" if !boolean(value)? => {}
        "comment" => module.comment = value.to_owned(),
        "list" => module.list = boolean(value)?,
        "maxconnections" => {
            let count: i64 = number(value)?;
            module.is_disabled = count < 0;
            module.max_connections = usize::try_from(count).unwrap_or(0);
        }
        "hostsallow" => module.hosts_allow = hosts(value)?,
        "hostsdeny" => module.hosts_deny = hosts(value)?,
        "authusers" => module.auth_users = words(value).map(auth_user).collect::<Value<_>>()?,
        "secretsfile" => module.secrets_file = Some(value.into()),
        "strictmodes" => module.strict_modes = boolean(value)?,
        "uid" => module.uid = Id::Named(value.to_owned()),
        "gid" => module.gid = Id::Named(value.to_owned()),
        "numericids" => module.numeric_ids = boolean(value)?,
        "mungesymlinks" => module.munge_symlinks = boolean(value)?,
        "ignorenonreadable" => module.ignore_nonreadable = boolean(value)?,
        "ignoreerrors" => module.ignore_errors = boolean(value)?,
        "timeout" => module.timeout_seconds = number(value)?,
        "refuseoptions" => module.refuse_options = words(value).map(str::to_owned).collect(),
        "transferlogging" => module.transfer_logging = boolean(value)?,
        "logformat" => module.log_format = LogFormat::parse(value)?,
        "filter" => rules.filter.push(value.to_owned()),
        "exclude" => rules.exclude.extend(words(value).map(str::to_owned)),
        "include" => rules.include.extend(words(value).map(str::to_owned)),
        "excludefrom" => rules.exclude_from = Some(value.into()),
        "includefrom" => rules.include_from = Some(value.into()),
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
        // Every module ends at its root, with or without chroot(2).
        "usechroot" => drop(boolean(value)?),
        "logfile" => module.log_file = log_file(value),
        // No compressor changes its level from file to file, as in rsync 3.5: all files or none.
        "dontcompress" => module.dont_compress = words(value).any(|pattern| pattern == "*"),
        // What is said goes to a file or to standard error, and nobody can ask for more of it.
        "syslogfacility" | "syslogtag" | "maxverbosity" => {}
        // Connections are counted in this one process.
        "lockfile" => {}
        _ => return Err(format!("the parameter '{key}' is not known here")),
    }
    Ok(())
}

fn log_file(value: &str) -> Option<PathBuf> {
    (!value.is_empty()).then(|| value.into())
}

fn trimmed_path(path: &str) -> String {
    match path.trim_end_matches('/') {
        "" => path.to_owned(),
        trimmed => trimmed.to_owned(),
    }
}

/// Nothing takes back what stands before all modules.
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
    for text in &rules.filter {
        // Several rules may stand on one line, each beginning with its kind.
        let mut rest = text.trim();
        while !rest.is_empty() {
            let (kind, after) =
                rest.split_once([' ', '_']).ok_or_else(|| format!("'{rest}' is no filter rule"))?;
            let after = after.trim_start();
            let (pattern, after) = after.split_once(' ').unwrap_or((after, ""));
            hidden.add(format!("{kind} {pattern}").as_bytes()).map_err(|error| error.to_string())?;
            rest = after.trim_start();
        }
    }
    for (file, patterns, include) in
        [(&rules.include_from, &rules.include, true), (&rules.exclude_from, &rules.exclude, false)]
    {
        if let Some(file) = file {
            let text =
                std::fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
            for line in text.split(|byte| matches!(byte, b'\n' | b'\r')) {
                match line {
                    [] | [b'#' | b';', ..] => {}
                    [b'+' | b'-', b' ', ..] => hidden.add(line).map_err(|error| error.to_string())?,
                    _ => hidden.add_pattern(line, include),
                }
            }
        }
        for pattern in patterns {
            hidden.add_pattern(pattern.as_bytes(), include);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Subject;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        Config::parse(text, Path::new("rsyncd.conf"))
    }

    #[test]
    fn modules_begin_as_what_stands_before_them() {
        let config = parse(
            "# all\nport = 8873\nmax connections = 4\nexclude = *.tmp\n[a]\n path = /srv/a/\n comment = the \\\n   a\n\
             [b]\n  Path=tank/b@\n  list = no\n hosts allow = 10.0.0.0/8, ::1\nexclude = /x\n",
        )
        .unwrap();
        assert_eq!(config.port, Some(8873));
        let [a, b] = config.modules.as_slice() else { panic!() };
        assert_eq!((a.path.as_str(), a.comment.as_str(), a.max_connections), ("/srv/a", "the a", 4));
        assert!(a.is_directory() && !b.is_directory() && !b.list && b.hosts_allow.is_some());
        let hides = |module: &Module, path: &[u8]| {
            module.hidden.excludes(Subject { path, full: path, is_dir: false }, None)
        };
        assert!(hides(a, b"d/c.tmp") && !hides(a, b"x") && hides(b, b"x") && hides(b, b"c.tmp"));
    }

    #[test]
    fn trees_of_attributes_are_where_rsync_huai_has_them() {
        let text = "reverse lookup = no\n[foo]\npath = /storage/./mirror-attrs/foo\nreal file prefix = /mirrors/foo\n\
                    [bar]\npath = /attrs/bar\nreal file prefix = /mirrors/bar\n[baz]\npath = /baz\n";
        let config = parse(text).unwrap();
        let files: Vec<_> = config.modules.iter().map(Module::real_files).collect();
        assert_eq!(files, [Some("/storage/mirrors/foo".into()), Some("/mirrors/bar".into()), None]);
        for more in ["index = /i", "path = tank/a"] {
            let text = format!("[foo]\npath = /a\nreal file prefix = /b\n{more}\n");
            assert!(matches!(parse(&text), Err(ConfigError::Line { .. })), "{more}");
        }
        assert!(parse("[a]\npath = /a\nreal path = /b\n").is_err());
        assert!(parse("[a]\npath = tank/a\nindex = /b\n").is_err());
    }

    #[test]
    fn what_is_written_to_is_a_dataset() {
        let text = "[a]\npath = tank/a\nread only = no\nuid = joe\nkeep snapshots = 7\nwrite only = yes\npre-xfer exec = echo $A, b\n\
                    secrets file = /s\nauth users = joe:rw, ann, bob:ro, *:deny\n";
        let config = parse(text).unwrap();
        let module = &config.modules[0];
        assert!(!module.read_only && module.write_only && module.is_written() && !module.is_snapshot());
        assert_eq!((module.keep_snapshots, module.pre_exec.as_deref()), (Some(7), Some("echo $A, b")));
        let access: Vec<_> = module.auth_users.iter().map(|user| user.access).collect();
        assert_eq!(access, [Some(Access::ReadWrite), None, Some(Access::Read), Some(Access::Denied)]);
    }

    #[test]
    fn files_are_included_and_merged() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        write("d/b.conf", "comment = b's\n[b]\npath = /b\n");
        write("d/a.conf", "port = 9\n[a]\npath = /a\n");
        write("d/no.text", "nonsense");
        write("d/all.inc", "max connections = 3\n");
        write("more", "list = no\n");
        write(
            "main",
            "comment = all\n&merge d\n&include d\n[m]\npath = /m\n&merge more\n&include one\ntimeout = 5\n[n]\npath = /n\n",
        );
        write("one", "[one]\npath = /one\n");
        let load = |name: &str| Config::load(&dir.path().join(name));
        let config = load("main").unwrap();
        let seen: Vec<_> = config
            .modules
            .iter()
            .map(|it| {
                (it.name.as_str(), it.comment.as_str(), it.max_connections, it.list, it.timeout_seconds)
            })
            .collect();
        let expected = [
            ("a", "all", 3, true, TIMEOUT_SECONDS),
            ("b", "b's", 3, true, TIMEOUT_SECONDS),
            ("m", "all", 3, false, TIMEOUT_SECONDS),
            ("one", "all", 3, true, TIMEOUT_SECONDS),
            ("n", "all", 3, true, 5),
        ];
        assert_eq!((config.port, seen.as_slice()), (Some(9), &expected[..]));

        write("again", "&include again\n");
        assert!(load("again").unwrap_err().to_string().contains("more than 10 files"));
        write("gone", "&merge nothing\n");
        assert!(load("gone").unwrap_err().to_string().contains("cannot read"));
        write("what", "\n&insert x\n");
        assert!(load("what").unwrap_err().to_string().contains("line 2: '&insert x' is neither"));
        write("inside", "[x]\npath = /x\n&merge bad\n");
        write("bad", "list = no\nfrobnicate = 1\n");
        assert!(load("inside").unwrap_err().to_string().contains("bad, line 2: the parameter 'frobnicate'"));
    }

    #[test]
    fn wrong_lines_are_told_with_their_number() {
        for (text, line) in [
            ("[a]\npath = /a\nread only = no\n", 3),
            ("[a]\npath = /a\nsecrets file = /s\nauth users = joe:ro, ann:rw\n", 4),
            ("[a]\npath = tank/a\nkeep snapshots = 3\n", 3),
            ("[a]\npath = tank/a\nread only = no\nkeep snapshots = 0\n", 4),
            ("[a]\npath = tank/a\nincoming chmod = F6\noutgoing chmod = what\n", 4),
            ("[a]\npath = /a\nfrobnicate = 1", 3),
            ("[a]\nlist = yes", 2),
            ("[a]\npath = /a\n[a]\npath = /b", 3),
            ("[a/b]\n", 1),
            ("[a]\npath = tank/a\nuid = root\n", 3),
            ("[a]\npath = /a\nlist = maybe\n", 3),
            ("[a]\npath = /a\nauth users = joe\n", 3),
            ("[a]\npath = /a\nfilter = : .rules\n", 3),
            ("[a]\npath = /a\nfilter = - a ? b\n", 3),
        ] {
            let error = parse(text).unwrap_err();
            assert!(
                matches!(error, ConfigError::Line { line: found, .. } if found == line),
                "{text}: {error}"
            );
        }
    }
}
