//! Reads the lines of a configuration and of the files that it includes.

use std::path::{Path, PathBuf};

use super::set::{Assignment, Draft};
use super::{Config, ConfigError, Seen, Value};

/// The most files that include one another.
const DEPTH_MAX: usize = 10;

/// The state of reading a configuration.
pub(super) struct Reader {
    config: Config,
    /// The parameters before the first module or in `[global]`. Modules begin with them.
    defaults: Draft,
    current: Option<Draft>,
    /// The number of files that are being read, one included by the other.
    depth: usize,
    /// The number of the line that was read last.
    line: usize,
    /// Global parameters that override those of the file, until they have been set.
    overrides: Vec<Assignment>,
}

impl Reader {
    /// Starts reading. `overrides` has lines with parameters. They are set after those before the first module of the
    /// file.
    ///
    /// # Errors
    /// When a line is not a parameter.
    pub(super) fn new(overrides: &str) -> Value<Self> {
        let overrides = overrides.lines().map(assignment).collect::<Value<_>>()?;
        let (config, defaults) = (Config::default(), Draft::new());
        Ok(Self { config, defaults, current: None, depth: 0, line: 0, overrides })
    }

    /// Reads the text of a file.
    pub(super) fn text(&mut self, text: &str, path: &Path) -> Result<(), ConfigError> {
        for (line, text) in logical_lines(text) {
            self.line = line;
            let wrong = |what: String| ConfigError::Line { path: path.to_owned(), line, what };
            if let Some(directive) = text.strip_prefix('&') {
                let (name, other) = directive.split_once([' ', '\t', '=']).unwrap_or((directive, ""));
                let other = other.trim_start().trim_start_matches('=').trim();
                match name.to_ascii_lowercase().as_str() {
                    "include" if !other.is_empty() => {
                        self.finish_module().map_err(wrong)?;
                        let defaults = self.defaults.clone();
                        for file in self.files(path, other, "conf").map_err(wrong)? {
                            self.nested(&file, path, line)?;
                            self.finish_module().map_err(wrong)?;
                            self.defaults = defaults.clone();
                        }
                    }
                    "merge" if !other.is_empty() => {
                        for file in self.files(path, other, "inc").map_err(wrong)? {
                            self.nested(&file, path, line)?;
                        }
                    }
                    _ => {
                        return Err(wrong(format!(
                            "'&{directive}' is neither '&include FILE' nor '&merge FILE'"
                        )));
                    }
                }
            } else if let Some(name) = text.strip_prefix('[') {
                self.begin_module(name).map_err(wrong)?;
            } else {
                let warning = self.parameter(&text).map_err(wrong)?;
                if let Some(warning) = warning {
                    self.config.warnings.push(format!("{warning} ({}, line {line})", path.display()));
                }
            }
        }
        Ok(())
    }

    /// Finishes after all lines. `path` is the first file.
    pub(super) fn end(mut self, path: &Path) -> Result<Config, ConfigError> {
        let line = self.line;
        let wrong = |what| ConfigError::Line { path: path.to_owned(), line, what };
        self.override_globals().map_err(wrong)?;
        self.finish_module().map_err(wrong)?;
        self.config.check().map_err(wrong)?;
        Ok(self.config)
    }

    /// Reads a file.
    pub(super) fn file(&mut self, file: &Path) -> Result<(), ConfigError> {
        // Recorded before the file is read, so that a change meanwhile counts as a change.
        self.saw(file);
        let text = String::from_utf8(super::contents(file)?);
        let text = text.map_err(|_| ConfigError::Line {
            path: file.to_owned(),
            line: 1,
            what: "the file is no text in UTF-8".to_owned(),
        })?;
        self.text(&text, file)
    }

    /// Reads a file that a line of another file includes.
    fn nested(&mut self, file: &Path, by: &Path, line: usize) -> Result<(), ConfigError> {
        if self.depth == DEPTH_MAX {
            let what = format!("{}: more than {DEPTH_MAX} files include one another", file.display());
            return Err(ConfigError::Line { path: by.to_owned(), line, what });
        }
        self.depth += 1;
        self.file(file)?;
        self.depth -= 1;
        self.line = line;
        Ok(())
    }

    /// Records the identity of a file.
    fn saw(&mut self, path: &Path) {
        self.config.files.push(Seen::at(path));
    }

    fn begin_module(&mut self, name: &str) -> Value<()> {
        let name = name.strip_suffix(']').and_then(super::module_name);
        let name = name.ok_or_else(|| "this is no module's name".to_owned())?;
        self.finish_module()?;
        if name == "global" {
            return Ok(());
        }
        self.override_globals()?;
        if self.config.modules.iter().any(|other| other.name == name) {
            return Err(format!("module '{name}' is there twice"));
        }
        self.current = Some(self.defaults.named(&name));
        Ok(())
    }

    fn finish_module(&mut self) -> Value<()> {
        if let Some(done) = self.current.take() {
            self.config.modules.push(done.finish()?);
        }
        Ok(())
    }

    /// Handles a line with a parameter. Returns a warning for the log if the parameter is not used.
    fn parameter(&mut self, text: &str) -> Value<Option<String>> {
        let assignment = assignment(text)?;
        let name = assignment.name.clone();
        let is_global = Config::is_global(&assignment.key);
        let taken = match (&mut self.current, is_global) {
            (Some(_), true) => return Ok(Some(format!("Global parameter {name} found in module section!"))),
            (None, true) => self.config.set(&assignment)?,
            (current, false) => {
                if current.is_none() {
                    self.config.note(&assignment)?;
                }
                current.as_mut().unwrap_or(&mut self.defaults).take(assignment)?
            }
        };
        // The words of stock rsync, which log searches look for.
        Ok((!taken).then(|| {
            format!("Unknown Parameter encountered: \"{name}\"; IGNORING unknown parameter \"{name}\"")
        }))
    }

    /// Sets the parameters that override those of the file.
    fn override_globals(&mut self) -> Value<()> {
        for assignment in std::mem::take(&mut self.overrides) {
            let name = assignment.name.clone();
            let taken = match Config::is_global(&assignment.key) {
                true => self.config.set(&assignment)?,
                false => {
                    self.config.note(&assignment)?;
                    self.defaults.take(assignment)?
                }
            };
            if !taken {
                return Err(format!("Unknown parameter \"{name}\""));
            }
        }
        Ok(())
    }

    /// The files that a directive of the file `by` includes: one file, or the files of a directory that end with
    /// `extension`, sorted.
    fn files(&mut self, by: &Path, name: &str, extension: &str) -> Value<Vec<PathBuf>> {
        let path = by.parent().unwrap_or(Path::new("")).join(name);
        if !path.is_dir() {
            return Ok(vec![path]);
        }
        self.saw(&path);
        let cannot = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
        let mut files = Vec::new();
        for entry in path.read_dir().map_err(cannot)? {
            let file = entry.map_err(cannot)?.path();
            if file.extension().is_some_and(|its| its == extension) {
                files.push(file);
            }
        }
        files.sort();
        Ok(files)
    }
}

/// Parses a line with a parameter. Case and spaces in the name do not count.
fn assignment(text: &str) -> Value<Assignment> {
    let (name, value) = text.split_once('=').ok_or_else(|| "a '=' is missing".to_owned())?;
    let name = name.split_whitespace().collect::<Vec<_>>().join(" ");
    let key = name.replace(' ', "").to_lowercase();
    Ok(Assignment { key, name, value: value.trim().to_owned() })
}

/// The lines that are not empty or comments, with their numbers. A backslash at the end continues a line.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if !goes_on && (line.is_empty() || line.starts_with(['#', ';'])) {
            continue;
        }
        let (part, more) = line.strip_suffix('\\').map_or((line, false), |part| (part, true));
        match lines.last_mut().filter(|_| goes_on) {
            Some((_, before)) => {
                before.push_str(part);
            }
            None => lines.push((at + 1, part.to_owned())),
        }
        goes_on = more;
    }
    lines
}
