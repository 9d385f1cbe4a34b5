//! The configuration `rsyncd.conf`: what is served, and to whom (rsyncd.conf(5)).

mod read;
mod set;
mod variables;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::read::Reader;
use self::set::Assignment;
pub(super) use self::set::names;
use super::access::HostList;
use super::auth::AuthDigest;
use super::confine::Confinement;
use super::identity::Identity;
use super::log::LogFormat;
use super::socket_options::SocketOption;
use super::trusted;
use crate::chmod::Chmod;
use crate::filter::Filter;

/// Default timeout of an idle connection. It frees the place of a dead connection.
const TIMEOUT_SECONDS: u32 = 3600;

/// An error in a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A line is wrong.
    #[error("{}, line {line}: {what}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, starting at one.
        line: usize,
        /// What is wrong.
        what: String,
    },
}

/// Default maximum of connections of one address at a time.
const PER_ADDRESS: usize = 64;

/// A whole configuration.
#[derive(Debug)]
pub struct Config {
    /// The message of the day, which every client gets.
    pub motd_file: Option<PathBuf>,
    /// The address to listen on, if the command line has none.
    pub address: Option<String>,
    /// The port to listen on, if the command line has none.
    pub port: Option<u16>,
    /// The file that the process ID is written to.
    pub pid_file: Option<PathBuf>,
    /// The log file of the server. Without one, it logs to standard error.
    pub log_file: Option<PathBuf>,
    /// The most connections of one address at a time. 0 is no limit.
    pub max_connections_per_address: usize,
    /// The most connections that may wait to be accepted.
    pub listen_backlog: Option<u16>,
    /// Every connection begins with a header in which a proxy gives the address of its client.
    pub proxy_protocol: bool,
    /// The proxies that are trusted with such a header. Without a list, none are.
    pub proxy_protocol_hosts: Option<HostList>,
    /// Options for the sockets of clients.
    pub socket_options: Vec<SocketOption>,
    /// The facility of syslog for lines without a log file, if they go to syslog.
    pub syslog_facility: Option<String>,
    /// The text that lines in syslog begin with. See `syslog_facility`.
    pub syslog_tag: Option<String>,
    /// The rights that the server gives up before it serves anybody.
    pub confinement: Confinement,
    /// Warnings to log: parameters that are not known.
    pub warnings: Vec<String>,
    /// The modules, in the order of the file.
    pub modules: Vec<Module>,
    /// The files and directories that were read, with their identity at that time. The first file includes the others.
    pub(super) files: Vec<Seen>,
    /// The lines of parameters that override those of the files.
    pub(super) overrides: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            motd_file: None,
            address: None,
            port: None,
            pid_file: None,
            log_file: None,
            max_connections_per_address: PER_ADDRESS,
            listen_backlog: None,
            proxy_protocol: false,
            proxy_protocol_hosts: None,
            socket_options: Vec::new(),
            syslog_facility: None,
            syslog_tag: None,
            confinement: Confinement::default(),
            warnings: Vec::new(),
            modules: Vec::new(),
            files: Vec::new(),
            overrides: String::new(),
        }
    }
}

/// A file or directory that was read.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) path: PathBuf,
    identity: Option<Identity>,
    /// The open file. It keeps its path in the kernel's cache, so that checking whether it is still there reads nothing
    /// from a disk.
    _file: Option<File>,
}

impl Seen {
    fn at(path: &Path) -> Self {
        // Opening a pipe would wait for its writer.
        let stays = path.is_file() || path.is_dir();
        let file = stays.then(|| File::open(path).ok()).flatten();
        Self { path: path.to_owned(), identity: Identity::at(path), _file: file }
    }

    /// Whether the path now has a different file.
    pub(super) fn has_changed(&self) -> bool {
        Identity::at(&self.path) != self.identity
    }
}

/// A user that may log in, and its access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthUser {
    /// The name, which may have wildcards. After an `@` it is a group of this machine, and stands for the users in it.
    pub name: String,
    /// The access of the user. Without one, that of the module.
    pub access: Option<Access>,
}

/// What a user may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Access {
    Denied,
    Read,
    ReadWrite,
}

/// The user or group that the server uses while it reads a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Id {
    /// The default of the manual: "nobody", if the server is root.
    Default,
    /// A name or number.
    Named(String),
}

/// A module.
#[derive(Debug, Clone)]
#[allow(missing_docs, clippy::struct_excessive_bools)]
pub struct Module {
    pub name: String,
    /// A directory ("/srv/a"), a dataset or snapshot ("tank/a", "tank/a@monday"), or the newest snapshot ("tank/a@").
    pub path: String,
    /// The index that lists the files of the directory. Nothing else is read to list them.
    pub index: Option<PathBuf>,
    /// The directory with the files of an index, if it is not the path.
    pub real_path: Option<PathBuf>,
    /// The directory with the files, if the path has a tree of attributes (rsync-huai's format).
    pub real_file_prefix: Option<PathBuf>,
    pub comment: String,
    pub list: bool,
    /// The most connections at a time. 0 is no limit.
    pub max_connections: usize,
    /// The file in which all servers together count clients.
    pub lock_file: Option<PathBuf>,
    /// The limit of connections is negative: nobody may connect.
    pub is_disabled: bool,
    pub hosts_allow: Option<HostList>,
    pub hosts_deny: Option<HostList>,
    /// Names of clients are looked up when they are needed.
    pub reverse_lookup: bool,
    /// Addresses of names in the host lists are looked up.
    pub forward_lookup: bool,
    pub read_only: bool,
    pub write_only: bool,
    /// How many snapshots of pushes are kept, if it is not the dataset's property that decides.
    pub keep_snapshots: Option<usize>,
    pub incoming_chmod: Chmod,
    pub outgoing_chmod: Chmod,
    /// Commands that run before the request is read, before the transfer, and after the transfer.
    pub early_exec: Option<String>,
    pub pre_exec: Option<String>,
    pub post_exec: Option<String>,
    pub auth_users: Vec<AuthUser>,
    /// The weakest digest that a client may answer with.
    pub auth_digest: Option<AuthDigest>,
    /// The name in `auth digest`, if it is not the name of a digest. Nobody can log in then.
    pub unknown_digest: Option<String>,
    pub secrets_file: Option<PathBuf>,
    pub strict_modes: bool,
    pub uid: Id,
    pub gid: Id,
    pub numeric_ids: bool,
    /// Attributes that only root can set are kept in extended attributes. This has no effect on datasets, which store
    /// them in any case.
    pub fake_super: bool,
    /// The directory in which received files are written before they are renamed.
    pub temp_dir: Option<String>,
    /// Whether links are munged. Without a value, they are munged in modules that a client could leave through a link.
    pub munge_symlinks: Option<bool>,
    pub use_chroot: Option<bool>,
    /// Links that lead out of the module are followed.
    pub insecure_links: bool,
    /// A command that converts names of users and groups.
    pub name_converter: Option<String>,
    pub ignore_errors: bool,
    /// Files that the module's user cannot read are hidden.
    pub ignore_nonreadable: bool,
    pub timeout_seconds: u32,
    pub refuse_options: Vec<String>,
    pub hidden: Filter,
    pub transfer_logging: bool,
    pub log_format: LogFormat,
    /// The log file of the transfers. Without one, they are logged to standard error.
    pub log_file: Option<PathBuf>,
    /// Use the lowest level of compression that the method has.
    pub dont_compress: bool,
    /// The parameters of the module, if a value of them uses variables of connections.
    said: Option<Arc<[Assignment]>>,
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
            lock_file: None,
            is_disabled: false,
            hosts_allow: None,
            hosts_deny: None,
            reverse_lookup: true,
            forward_lookup: true,
            read_only: true,
            write_only: false,
            keep_snapshots: None,
            incoming_chmod: Chmod::default(),
            outgoing_chmod: Chmod::default(),
            early_exec: None,
            pre_exec: None,
            post_exec: None,
            auth_users: Vec::new(),
            auth_digest: None,
            unknown_digest: None,
            secrets_file: None,
            strict_modes: true,
            uid: Id::Default,
            gid: Id::Default,
            numeric_ids: false,
            fake_super: false,
            temp_dir: None,
            munge_symlinks: None,
            use_chroot: None,
            insecure_links: false,
            name_converter: None,
            ignore_errors: false,
            ignore_nonreadable: false,
            timeout_seconds: TIMEOUT_SECONDS,
            refuse_options: Vec::new(),
            hidden: Filter::of_module(),
            transfer_logging: false,
            log_format: LogFormat::default(),
            log_file: None,
            dont_compress: false,
            said: None,
        }
    }

    /// The module with the variables of a connection. `None` if it uses no such variables. `look` returns the value of
    /// a variable by its name.
    ///
    /// # Errors
    /// When the value of a variable is not allowed where it is used, or the resulting module is invalid.
    pub(crate) fn for_connection(
        &self,
        look: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Result<Self, String>> {
        self.said.is_some().then(|| set::for_connection(self, look))
    }

    /// Whether the path uses variables of connections.
    pub fn has_variable_path(&self) -> bool {
        variables::is_of_connection(&self.path)
    }

    /// Whether the path of the index uses variables of connections.
    pub(super) fn has_variable_index(&self) -> bool {
        is_variable(self.index.as_deref())
    }

    /// Whether the path of the log file uses variables of connections.
    pub fn has_variable_log_file(&self) -> bool {
        is_variable(self.log_file.as_deref())
    }

    /// The directory with the files of a tree of attributes. It is below the root that a path with `/./` names, or
    /// below the root directory of this machine.
    pub fn real_files(&self) -> Option<PathBuf> {
        let prefix = self.real_file_prefix.as_ref()?;
        let root = self.path.split_once("/./").map_or("/", |(root, _)| root);
        Some(Path::new(root).join(prefix.strip_prefix("/").unwrap_or(prefix)))
    }

    /// Whether the module is a directory of this machine, not a dataset.
    pub fn is_directory(&self) -> bool {
        self.path.starts_with('/')
    }

    /// Whether symbolic links are munged, so that they lead nowhere. The default is yes for directories that rsync
    /// would serve without chroot(2) to them.
    pub fn is_munged(&self) -> bool {
        self.munge_symlinks.unwrap_or_else(|| self.has_outside())
    }

    /// Whether the module is a directory that rsync would serve without chroot(2) to it. Links in it could lead out of
    /// it.
    fn has_outside(&self) -> bool {
        let is_root = || rustix::process::geteuid().is_root();
        // With "/./" in the path, rsync's root directory is above the module.
        let is_below = || self.path.contains("/./") && !self.path.ends_with("/./");
        let is_inside = || self.path != "/" && (is_below() || !self.use_chroot.unwrap_or_else(is_root));
        self.is_directory() && is_inside()
    }

    /// Whether targets of received links are changed so that they stay in the module.
    pub fn is_sanitized(&self) -> bool {
        self.has_outside() && !self.is_munged()
    }

    /// Whether links are followed even out of the module.
    pub fn follows_anywhere(&self) -> bool {
        self.insecure_links && self.has_outside()
    }

    /// Whether `--copy-dirlinks` leaves out links that lead out of the module, and reports an error.
    pub fn keeps_outward_links(&self) -> bool {
        self.has_outside() && !self.insecure_links
    }

    /// Whether the path is a snapshot, or the newest snapshot. Snapshots are never written to.
    pub fn is_snapshot(&self) -> bool {
        !self.is_directory() && self.path.contains('@')
    }

    /// Checks that the parameters fit together.
    fn check(&self) -> Value<()> {
        if self.path.is_empty() {
            return Err(format!("module '{}' has no path", self.name));
        }
        if self.path.starts_with('%') {
            return Err(format!(
                "module '{}': a path begins with '/' or the name of a pool, not with a variable",
                self.name
            ));
        }
        if !self.auth_users.is_empty() && self.secrets_file.is_none() {
            return Err(format!("module '{}' has auth users and no secrets file", self.name));
        }
        if self.real_file_prefix.is_some() && self.is_written() {
            return Err(format!(
                "module '{}': a tree of attributes is read only: 'read only' can only be yes, and no user's rule ':rw'",
                self.name
            ));
        }
        let has_owner = self.uid != Id::Default || self.gid != Id::Default;
        if !self.is_directory() && has_owner && !self.is_written() {
            return Err(format!(
                "module '{}': uid and gid are of directories, and of datasets that are written to: of a dataset everything is served",
                self.name
            ));
        }
        if self.keep_snapshots.is_some() && (self.is_directory() || !self.is_written()) {
            return Err(format!(
                "module '{}': 'keep snapshots' is of datasets that are written to only",
                self.name
            ));
        }
        if self.index.is_some() && !self.is_directory() {
            return Err(format!("module '{}': a dataset needs no index", self.name));
        }
        if self.real_file_prefix.is_some() && (self.index.is_some() || !self.is_directory()) {
            return Err(format!("module '{}': 'real file prefix' is of trees of attributes only", self.name));
        }
        let has_list = self.index.is_some() || self.real_file_prefix.is_some();
        if self.fake_super && self.is_directory() && has_list {
            return Err(format!(
                "module '{}': 'fake super' is of directories without an index or a tree of attributes: these have the \
                 attributes that files really have",
                self.name
            ));
        }
        if self.real_path.is_some() && self.index.is_none() {
            return Err(format!("module '{}': 'real path' is of what has an index only", self.name));
        }
        if self.hidden.has_merges() {
            return Err(format!("module '{}': rules in files of directories are clients' only", self.name));
        }
        Ok(())
    }

    /// Whether any user may write to the module, according to its parameters.
    fn is_written(&self) -> bool {
        !self.read_only || self.auth_users.iter().any(|user| user.access == Some(Access::ReadWrite))
    }
}

type Value<T> = std::result::Result<T, String>;

fn contents(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let mut text = Vec::new();
    let read = trusted::open(path).and_then(|mut file| file.read_to_end(&mut text));
    read.map(|_| text).map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

impl Config {
    /// Reads a configuration from a file.
    ///
    /// # Errors
    /// When a file cannot be read, or a line is wrong.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::load_with(path, "")
    }

    /// Reads a configuration from a file. The global parameters in the lines of `parameters` override those of the
    /// file.
    ///
    /// # Errors
    /// As [`load`](Self::load), or when one of these lines is wrong.
    pub fn load_with(path: &Path, parameters: &str) -> Result<Self, ConfigError> {
        let wrong = |what| ConfigError::Line { path: "--dparam".into(), line: 1, what };
        let mut reader = Reader::new(parameters).map_err(wrong)?;
        reader.file(path)?;
        let mut config = reader.end(path)?;
        parameters.clone_into(&mut config.overrides);
        Ok(config)
    }

    /// Parses a configuration. `path` is the name of the file in errors.
    ///
    /// # Errors
    /// When a line is wrong, or names a file that cannot be read.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let wrong = |what| ConfigError::Line { path: path.to_owned(), line: 0, what };
        let mut reader = Reader::new("").map_err(wrong)?;
        reader.text(text, path)?;
        reader.end(path)
    }

    /// Checks that the modules fit the global parameters.
    fn check(&self) -> Value<()> {
        let denies_groups =
            |module: &&Module| module.hosts_deny.as_ref().is_some_and(HostList::has_netgroups);
        if self.confinement.chroot.is_some()
            && let Some(module) = self.modules.iter().find(denies_groups)
        {
            return Err(format!(
                "module '{}': with 'daemon chroot', 'hosts deny' can only have addresses and names: netgroups are not \
                 looked through there, and nobody would be denied",
                module.name
            ));
        }
        match self.modules.iter().find(|module| !self.confinement.is_none() && !module.is_directory()) {
            Some(module) => Err(format!(
                "module '{}': with 'daemon chroot', 'daemon uid' or 'daemon gid' there are no datasets, only directories: a \
                 pool opens files of its own while it is used",
                module.name
            )),
            None => Ok(()),
        }
    }

    /// The module with this name.
    pub fn module(&self, name: &[u8]) -> Option<&Module> {
        self.modules.iter().find(|module| module.name.as_bytes() == name)
    }
}

/// Whether a path uses variables of connections.
fn is_variable(file: Option<&Path>) -> bool {
    file.and_then(Path::to_str).is_some_and(variables::is_of_connection)
}

/// The name in a section header. Several spaces count as one.
fn module_name(name: &str) -> Option<String> {
    let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
    (!name.is_empty() && !name.contains(['/', ']', '[', '\n'])).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let hides = |module: &Module, path: &[u8]| module.hidden.hides(path, false);
        // Of several lines with the same parameter, the last one counts.
        assert!(hides(a, b"d/c.tmp") && !hides(a, b"x") && hides(b, b"x") && !hides(b, b"c.tmp"));
    }

    #[test]
    fn rules_are_read_as_the_manual_has_them() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("rules");
        std::fs::write(&file, "# those of everybody\n- *.o\n+ /kept\n").unwrap();
        let hidden = |text: &str, names: &[&str]| {
            let config = parse(&format!("[m]\npath = /m\n{text}\n")).unwrap();
            let module = config.modules.first().unwrap().clone();
            let is_hidden = |name: &&&str| {
                let path = name.as_bytes();
                module.hidden.hides(path, false)
            };
            names.iter().filter(is_hidden).copied().collect::<Vec<_>>().join(" ")
        };
        let names = ["a.o", "kept", "b", "c,d", "rules"];
        let file = file.display();
        assert_eq!(hidden("exclude = + /b * x", &names), "a.o kept c,d rules");
        assert_eq!(hidden("exclude = c,d\nexclude = - b", &names), "b");
        assert_eq!(hidden("include = b\nexclude = *", &names), "a.o kept c,d rules");
        assert_eq!(hidden(&format!("filter = merge {file} - *"), &names), "a.o b c,d rules");
        assert_eq!(hidden(&format!("filter = .- {file}"), &names), "a.o");
        assert_eq!(hidden(&format!("exclude from = {file}"), &names), "a.o");
        let gone = parse("[m]\npath = /m\nfilter = merge /none\n").unwrap_err().to_string();
        assert!(gone.contains("line 3") && gone.contains("cannot read /none"), "{gone}");
    }

    #[test]
    fn globals_can_come_between_modules() {
        let config = parse(
            "comment = one\n[a]\npath = /a\n[global]\ncomment = two\nlisten backlog = 9\nproxy protocol = yes\n\
             proxy protocol hosts = 10.0.0.0/8\n[ b  c ]\npath = /b\nfake super = no\nopen noatime = no\ntemp dir = /tmp\n",
        )
        .unwrap();
        let seen: Vec<_> = config.modules.iter().map(|it| (it.name.as_str(), it.comment.as_str())).collect();
        assert_eq!(seen, [("a", "one"), ("b c", "two")]);
        assert_eq!((config.listen_backlog, config.proxy_protocol), (Some(9), true));
        assert!(config.proxy_protocol_hosts.is_some());
    }

    #[test]
    fn variables_of_connections_make_modules_anew() {
        let text = "comment = %RSYNC_USER_NAME%\nexclude = /%RSYNC_USER_NAME%.key\nlog format = %RSYNC_USER_NAME%\n\
                    [plain]\npath = /p\ncomment = %NO_SUCH_VARIABLE% 100%\nexclude = x\nlog format = %n\n\
                    [home]\npath = tank/home/%RSYNC_USER_NAME%\nauth users = *\nsecrets file = %RSYNC_MODULE_PATH%/s\n\
                    pre-xfer exec = prepare %RSYNC_USER_NAME% \"$RSYNC_MODULE_PATH\"\n";
        assert!(parse(text).is_err(), "no such field in lines");
        let text = text.replacen("log format = %RSYNC_USER_NAME%\n", "", 1);
        let config = parse(&text).unwrap();
        let plain = &config.modules[0];
        // The defaults that the module began with count too.
        assert!(plain.for_connection(&|_| Some("joe".to_owned())).is_some());
        let home = &config.modules[1];
        assert!(home.has_variable_path() && !plain.has_variable_path());
        let of = |user: &str| {
            let user = user.to_owned();
            home.for_connection(&move |name| (name == "RSYNC_USER_NAME").then(|| user.clone())).unwrap()
        };
        let joe = of("joe").unwrap();
        assert_eq!(
            (joe.path.as_str(), joe.comment.as_str(), joe.name.as_str()),
            ("tank/home/joe", "joe", "home")
        );
        assert_eq!(joe.secrets_file.as_deref(), Some(Path::new("tank/home/joe/s")));
        assert_eq!(joe.pre_exec.as_deref(), Some("prepare joe \"$RSYNC_MODULE_PATH\""));
        assert!(joe.hidden.hides(b"joe.key", false));
        for bad in ["", "..", "a/b"] {
            assert!(of(bad).unwrap_err().contains("which is no name"), "{bad}");
        }
        assert!(of("joe;id").unwrap_err().contains("refusing to run shell hook"));
        // Before the login, the variable stays in place.
        let nobody = home.for_connection(&|_| None).unwrap().unwrap();
        assert_eq!(nobody.path, "tank/home/%RSYNC_USER_NAME%");
        // A rule for all modules holds for a module with variables too.
        let text = "[m]\npath = tank/%RSYNC_USER_NAME%\nkeep snapshots = 3\nread only = no\n";
        assert!(parse(text).is_ok() && parse("[m]\npath = %RSYNC_USER_NAME%\n").is_err());
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
    fn datasets_and_directories_are_written_to() {
        let text = "[a]\npath = tank/a\nread only = no\nuid = joe\nkeep snapshots = 7\nwrite only = yes\npre-xfer exec = echo $A, b\n\
                    secrets file = /s\nauth users = joe:rw, ann, bob:ro, *:deny\n";
        let config = parse(text).unwrap();
        let module = &config.modules[0];
        assert!(!module.read_only && module.write_only && module.is_written() && !module.is_snapshot());
        assert_eq!((module.keep_snapshots, module.pre_exec.as_deref()), (Some(7), Some("echo $A, b")));
        let access: Vec<_> = module.auth_users.iter().map(|user| user.access).collect();
        assert_eq!(access, [Some(Access::ReadWrite), None, Some(Access::Read), Some(Access::Denied)]);
        let config = parse("[a]\npath = /a\nread only = no\ntemp dir = /t\nindex = /i\n").unwrap();
        let module = &config.modules[0];
        assert!(module.is_written() && module.temp_dir.as_deref() == Some("/t"));
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
        write("equals", "&include = d\n&MERGE=more\n");
        assert_eq!(load("equals").unwrap().modules.len(), 2);
        write("what", "\n&insert x\n");
        assert!(load("what").unwrap_err().to_string().contains("line 2: '&insert x' is neither"));
        write("inside", "[x]\npath = /x\n&merge bad\n");
        write("bad", "list = no\nlist = perhaps\n");
        assert!(load("inside").unwrap_err().to_string().contains("bad, line 2: 'perhaps'"));
    }

    #[test]
    fn unknown_parameters_are_warned_of() {
        let text = "frob nicate = 1\nsocket options = TCP_NODELAY,SO_WHAT\ncharset = utf-8\n\
                    [a]\npath = /a\nNice = 2\nport = 9\nname converter = /bin/convert\nhosts allow = @friends\n";
        let config = parse(text).unwrap();
        let expected = [
            "Unknown Parameter encountered: \"frob nicate\"; IGNORING unknown parameter \"frob nicate\" (rsyncd.conf, line 1)",
            "Unknown socket option SO_WHAT",
            "Unknown Parameter encountered: \"Nice\"; IGNORING unknown parameter \"Nice\" (rsyncd.conf, line 6)",
            "Global parameter port found in module section! (rsyncd.conf, line 7)",
        ];
        assert_eq!(config.warnings, expected);
        assert_eq!(config.port, None);
        assert_eq!(config.modules[0].name_converter.as_deref(), Some("/bin/convert"));
    }

    #[test]
    fn what_would_take_rights_away_is_never_ignored() {
        let confined = |text: &str| parse(text).map(|config| config.confinement);
        for line in ["daemon chroot = /srv", "daemon uid = nobody", "Daemon GID = nogroup"] {
            assert!(!confined(&format!("{line}\n[a]\npath = /a\n")).unwrap().is_none(), "{line}");
            let error =
                confined(&format!("{line}\n[a]\npath = /a\n[b]\npath = tank/b\n")).unwrap_err().to_string();
            assert!(error.contains("module 'b'") && error.contains("only directories"), "{error}");
        }
        let all = confined("daemon uid = joe\ndaemon gid = 7\ndaemon chroot = /srv\n").unwrap();
        let (uid, gid) = (Some("joe".to_owned()), Some("7".to_owned()));
        assert_eq!(all, Confinement { uid, gid, chroot: Some("/srv".into()) });
        assert!(confined("daemon uid =\n[a]\npath = tank/a\n").unwrap().is_none());
        // Inside the root directory netgroups are not found, so a client denied by one would not be recognized.
        let denying = |hosts: &str| format!("daemon chroot = /srv\n[a]\npath = /a\nhosts deny = {hosts}\n");
        for hosts in ["@evil", "10.0.0.1 @evil"] {
            assert!(confined(&denying(hosts)).unwrap_err().to_string().contains("netgroups"));
        }
        assert!(confined(&denying("10.0.0.0/8 * evil.example.org *.example.org")).is_ok());
    }

    #[test]
    fn parameters_of_the_command_line_count_more() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("conf");
        std::fs::write(&file, "port = 1\ntimeout = 2\n[a]\npath = /a\n[b]\npath = /b\ntimeout = 3\n")
            .unwrap();
        let config = Config::load_with(&file, "port=9\nTimeout = 7\nmax connections = 5\n").unwrap();
        let seen: Vec<_> = config.modules.iter().map(|it| (it.timeout_seconds, it.max_connections)).collect();
        assert_eq!((config.port, seen.as_slice()), (Some(9), &[(7, 5), (3, 5)][..]));
        assert!(Config::load_with(&file, "frobnicate=1\n").is_err());
    }

    #[test]
    fn links_are_munged_where_rsync_would_do_it() {
        let is_munged = |text: &str| parse(&format!("[a]\n{text}\n")).unwrap().modules[0].is_munged();
        assert!(is_munged("path = /a\nuse chroot = no") && !is_munged("path = /a\nuse chroot = yes"));
        assert!(!is_munged("path = /\nuse chroot = no") && !is_munged("path = tank/a\nuse chroot = no"));
        assert!(!is_munged("path = /a\nuse chroot = no\nmunge symlinks = no"));
        assert!(is_munged("path = tank/a\nmunge symlinks = yes"));
        assert!(is_munged("path = /a/./b\nuse chroot = yes") && !is_munged("path = /a/./\nuse chroot = yes"));
    }

    #[test]
    fn wrong_lines_are_told_with_their_number() {
        for (text, line) in [
            ("[a]\npath = /a\nreal file prefix = /b\nread only = no\n", 4),
            ("[a]\npath = /a\nreal file prefix = /b\nsecrets file = /s\nauth users = joe:ro, ann:rw\n", 5),
            ("[a]\npath = /a\nread only = no\nkeep snapshots = 3\n", 4),
            ("[a]\npath = tank/a\nkeep snapshots = 3\n", 3),
            ("[a]\npath = tank/a\nread only = no\nkeep snapshots = 0\n", 4),
            ("[a]\npath = tank/a\nincoming chmod = F6\noutgoing chmod = what\n", 4),
            ("[a]\nlist = yes", 2),
            ("[a]\npath = /a\n[a]\npath = /b", 3),
            ("[a/b]\n", 1),
            ("[a]\npath = tank/a\nuid = root\n", 3),
            ("[a]\npath = /a\nlist = maybe\n", 3),
            ("[a]\npath = /a\nauth users = joe\n", 3),
            ("[a]\npath = /a\nfilter = : .rules\n", 3),
            ("[a]\npath = /a\nfilter = - a ? b\n", 3),
            ("proxy protocol = perhaps\n", 1),
        ] {
            let error = parse(text).unwrap_err();
            assert!(
                matches!(error, ConfigError::Line { line: found, .. } if found == line),
                "{text}: {error}"
            );
        }
    }
}
