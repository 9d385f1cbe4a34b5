//! Reading a `sanoid.conf` (sanoid 2.3: `init` in `sanoid`, and `sanoid.defaults.conf`).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IntoDeserializer;
use toml::{Table, Value};

use super::settings::Settings;
use super::text::wrong_name;
use super::{Config, ConfigError, Section, in_words};

/// The defaults of sanoid. Only counts are listed, since the other defaults are the same for all configurations.
const DEFAULTS: &str = "frequently = 0\nhourly = 48\ndaily = 90\nweekly = 0\nmonthly = 6\nyearly = 0\n";

/// Keys with boolean values.
const TOGGLES: [&str; 10] = [
    "autosnap",
    "autoprune",
    "monitor",
    "monitor_dont_warn",
    "monitor_dont_crit",
    "recursive",
    "process_children_only",
    "skip_children",
    "no_inconsistent_snapshot",
    "force_post_snapshot_script",
];

/// Keys that sanoid does not have.
const OURS: [&str; 7] = ["prefix", "jitter", "cron", "grid", "keep_last", "keep_not_replicated", "protect"];

/// A section of the file.
struct Written {
    name: String,
    line: usize,
    settings: Settings,
}

impl Config {
    /// Reads a `sanoid.conf`. `file` is its name in errors. `defaults` is the name and content of a
    /// `sanoid.defaults.conf`, if it replaces that of sanoid.
    ///
    /// # Errors
    /// If the file is not well-formed, a key is unknown, a value is not allowed, or a template is missing.
    pub fn from_sanoid(
        file: &str,
        content: &str,
        defaults: Option<(&str, &str)>,
    ) -> Result<Self, ConfigError> {
        let mut warnings = Vec::new();
        let mut base: Settings = toml::from_str(DEFAULTS).unwrap_or_default();
        if let Some((file, content)) = defaults {
            for section in sections(file, content, &mut warnings)? {
                if section.name == "template_default" {
                    base.lay(&section.settings);
                }
            }
        }
        let mut templates: BTreeMap<String, Settings> = BTreeMap::new();
        let mut written = Vec::new();
        for section in sections(file, content, &mut warnings)? {
            let Some(name) = section.name.strip_prefix("template_") else {
                written.push(section);
                continue;
            };
            if let Some(key) = section.settings.section_key() {
                warnings.push(format!("{file}:{}: '{key}' in a template has no effect", section.line));
            }
            templates.entry(name.to_owned()).or_default().lay(&section.settings);
        }
        if let Some(template) = templates.get("default") {
            base.lay(template);
        }
        let mut sections = Vec::new();
        for Written { name, line, settings } in written {
            let error = |message| ConfigError::Wrong { file: file.to_owned(), line, message };
            let mut laid = Settings::default();
            for template in settings.use_template.iter().flat_map(|names| names.texts()) {
                match templates.get(template) {
                    Some(template) => laid.lay(template),
                    // sanoid continues silently here, and then prunes by other rules than intended.
                    None => return Err(error(format!("[{name}]: there is no [template_{template}]"))),
                }
            }
            laid.lay(&settings);
            let stands = format!("[{name}] in {file}");
            let dataset = settings.path.clone().unwrap_or(name);
            if let Some(wrong) = wrong_name(&dataset) {
                return Err(error(wrong));
            }
            sections.push(Section {
                stands,
                dataset,
                recursion: settings.recursion(),
                skips_children: settings.skip_children.unwrap_or(false),
                settings: laid,
            });
        }
        Ok(Self {
            zone: None,
            defaults: base,
            sections,
            jobs: BTreeMap::new(),
            shares_hooks: false,
            warnings,
        })
    }
}

/// The sections of a file in their order. Anything before the first section is an error.
fn sections(file: &str, content: &str, warnings: &mut Vec<String>) -> Result<Vec<Written>, ConfigError> {
    let mut found: Vec<(String, usize, Table)> = Vec::new();
    for (line, text) in content.lines().enumerate().map(|(at, text)| (at + 1, text.trim())) {
        let error = |message: String| ConfigError::Wrong { file: file.to_owned(), line, message };
        if text.is_empty() || text.starts_with(['#', ';']) {
            continue;
        }
        if let Some(rest) = text.strip_prefix('[') {
            let name = rest.split_once(']').map(|(name, _)| name.trim());
            let name = name.ok_or_else(|| error("the name of a section must end with ']'".to_owned()))?;
            found.push((name.to_owned(), line, Table::new()));
            continue;
        }
        let Some((key, value)) = text.split_once('=') else {
            return Err(error(format!("'{text}' is neither [section] nor key = value")));
        };
        let (key, value) = (key.trim(), value.trim());
        let Some((section, _, table)) = found.last_mut() else {
            return Err(error(format!("'{key}' stands before the first [section]")));
        };
        if section == "version" {
            continue;
        }
        if OURS.contains(&key) {
            return Err(error(format!("[{section}]: '{key}' is not a setting of sanoid")));
        }
        if value.is_empty() {
            continue;
        }
        let value = meaning(key, value).map_err(|message| error(format!("[{section}]: {message}")))?;
        // Each key is checked alone, so that an error is reported for its line.
        settings(Table::from_iter([(key.to_owned(), value.clone())]))
            .map_err(|message| error(format!("[{section}]: {key}: {message}")))?;
        if table.contains_key(key) {
            warnings.push(format!(
                "{file}:{line}: '{key}' was already set in [{section}], and the first value is used"
            ));
        } else {
            table.insert(key.to_owned(), value);
        }
    }
    let read = found.into_iter().filter(|(name, ..)| name != "version");
    read.map(|(name, line, table)| {
        let settings =
            settings(table).map_err(|message| ConfigError::Wrong { file: file.to_owned(), line, message })?;
        Ok(Written { name, line, settings })
    })
    .collect()
}

fn settings(table: Table) -> Result<Settings, String> {
    Settings::deserialize(table.into_deserializer())
        .map_err(|error: toml::de::Error| in_words(error.message()))
}

/// Converts a value to its type.
fn meaning(key: &str, value: &str) -> Result<Value, String> {
    if TOGGLES.contains(&key) {
        return match value {
            "1" | "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => {
                Ok(Value::Boolean(true))
            }
            "0" | "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => {
                Ok(Value::Boolean(false))
            }
            zfs if key == "recursive" && zfs.to_ascii_lowercase().contains("zfs") => {
                Ok(Value::String("zfs".to_owned()))
            }
            other => Err(format!("{key}: '{other}' is neither yes nor no")),
        };
    }
    let is_text = key.ends_with("_script") || matches!(key, "path" | "use_template");
    Ok(match value.parse::<i64>() {
        Ok(number) if !is_text => Value::Integer(number),
        _ => Value::String(value.to_owned()),
    })
}
