//! Reading a configuration in TOML (docs/policy.md).

use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use serde::Deserialize;
use toml::Spanned;

use super::job::JobTable;
use super::rules::Rules;
use super::settings::Settings;
use super::{Config, ConfigError, Section, in_words};

/// Maximum depth of templates that use other templates.
const DEPTH_MAX: usize = 32;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    timezone: Option<ZoneText>,
    #[serde(default)]
    template: BTreeMap<String, Spanned<Settings>>,
    #[serde(default)]
    dataset: BTreeMap<String, Spanned<Settings>>,
    #[serde(default)]
    job: BTreeMap<String, Spanned<JobTable>>,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct ZoneText(TimeZone);

impl TryFrom<String> for ZoneText {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let zone = TimeZone::get(&name);
        zone.map(Self)
            .map_err(|_| format!("unknown time zone '{name}': use a name such as Europe/Vienna or UTC"))
    }
}

/// The state while a configuration is read.
struct Reader<'a> {
    file: &'a str,
    content: &'a str,
    templates: BTreeMap<String, Spanned<Settings>>,
}

impl Config {
    /// Reads a configuration. `file` is its name in errors.
    ///
    /// # Errors
    /// If the text is not TOML, a key is unknown, a value is not allowed, or a template is missing.
    pub fn from_toml(file: &str, content: &str) -> Result<Self, ConfigError> {
        let parsed: File = toml::from_str(content).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            ConfigError::at(file, content, offset, in_words(error.message()))
        })?;
        let reader = Reader { file, content, templates: parsed.template };
        for (name, template) in &reader.templates {
            if let Some(key) = template.get_ref().section_key() {
                return Err(
                    reader.error(template, format!("template '{name}': '{key}' is only for datasets"))
                );
            }
            // Unused templates are checked too.
            reader.resolved(template, &format!("template '{name}'"))?;
        }
        let defaults = match reader.templates.get("default") {
            Some(template) => reader.resolved(template, "template 'default'")?,
            None => Settings::default(),
        };
        let mut sections = Vec::new();
        for (name, table) in &parsed.dataset {
            let what = format!("dataset '{name}'");
            let settings = reader.resolved(table, &what)?;
            reader.check_periods(table, &what, &settings)?;
            let said = table.get_ref();
            let dataset = said.path.clone().unwrap_or_else(|| name.clone());
            if let Some(wrong) = wrong_name(&dataset) {
                return Err(reader.error(table, format!("{what}: {wrong}")));
            }
            sections.push(Section {
                stands: format!("[dataset.\"{name}\"] in {file}"),
                dataset,
                recursion: said.recursion(),
                skips_children: said.skip_children.unwrap_or(false),
                settings,
            });
        }
        // Parents come first, so that a dataset's own section takes precedence.
        sections.sort_by(|a, b| a.dataset.cmp(&b.dataset));
        if let Some([a, _]) = sections.array_windows().find(|[a, b]| a.dataset == b.dataset) {
            let message = format!("there are two sections for '{}'", a.dataset);
            return Err(ConfigError::at(file, content, 0, message));
        }
        let mut jobs = BTreeMap::new();
        for (name, table) in parsed.job {
            let what = format!("job '{name}'");
            if !is_word(&name) {
                return Err(
                    reader.error(&table, format!("{what}: names have letters, digits, '-', '_' and '.'"))
                );
            }
            let mut pruning = [None, None];
            let sides = [
                ("prune_source", &table.get_ref().prune_source),
                ("prune_target", &table.get_ref().prune_target),
            ];
            for (place, (key, said)) in pruning.iter_mut().zip(sides) {
                let Some(said) = said else { continue };
                let what = format!("{what}: {key}");
                if let Some(key) = said.section_key() {
                    return Err(reader.error(&table, format!("{what}: '{key}' is only for datasets")));
                }
                let mut settings = defaults.clone();
                settings.lay(&reader.laid(said, table.span().start, &what, &mut Vec::new())?);
                *place = Some(Rules::new(&settings, None));
            }
            let [prune_source, prune_target] = pruning;
            jobs.insert(name, table.into_inner().job(prune_source, prune_target));
        }
        Ok(Self {
            zone: parsed.timezone.map(|zone| zone.0),
            defaults,
            sections,
            jobs,
            shares_hooks: true,
            warnings: Vec::new(),
        })
    }
}

impl Reader<'_> {
    fn error<T>(&self, at: &Spanned<T>, message: impl Into<String>) -> ConfigError {
        ConfigError::at(self.file, self.content, at.span().start, message)
    }

    /// A table combined with its templates.
    fn resolved(&self, table: &Spanned<Settings>, what: &str) -> Result<Settings, ConfigError> {
        self.laid(table.get_ref(), table.span().start, what, &mut Vec::new())
    }

    fn laid<'b>(
        &'b self,
        said: &'b Settings,
        offset: usize,
        what: &str,
        above: &mut Vec<&'b str>,
    ) -> Result<Settings, ConfigError> {
        let error = |message| ConfigError::at(self.file, self.content, offset, format!("{what}: {message}"));
        let mut settings = Settings::default();
        for name in said.use_template.iter().flat_map(|names| names.texts()) {
            let Some((name, template)) = self.templates.get_key_value(name) else {
                let known: Vec<&str> = self.templates.keys().map(String::as_str).collect();
                let but = if known.is_empty() {
                    String::new()
                } else {
                    format!("; there are: {}", known.join(", "))
                };
                return Err(error(format!("there is no template '{name}'{but}")));
            };
            if above.contains(&name.as_str()) || above.len() >= DEPTH_MAX {
                return Err(error(format!("template '{name}' uses itself")));
            }
            above.push(name);
            settings.lay(&self.laid(template.get_ref(), offset, what, above)?);
            above.pop();
        }
        settings.lay(said);
        Ok(settings)
    }

    fn check_periods(
        &self,
        at: &Spanned<Settings>,
        what: &str,
        settings: &Settings,
    ) -> Result<(), ConfigError> {
        for name in settings.cron.iter().flatten().map(|(name, _)| name.as_str()) {
            if ["frequently", "hourly", "daily", "weekly", "monthly", "yearly"].contains(&name) {
                return Err(self
                    .error(at, format!("{what}: '{name}' is a period: a cron schedule needs another name")));
            }
            let is_fine =
                name.len() <= 32 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            if name.is_empty() || !is_fine {
                let message = format!("{what}: cron '{name}': names have up to 32 letters, digits and '-'");
                return Err(self.error(at, message));
            }
        }
        Ok(())
    }
}

/// The error message for an invalid dataset name, or `None` for a valid one.
pub(super) fn wrong_name(name: &str) -> Option<String> {
    let is_fine = !name.is_empty()
        && name.len() < 256
        && name.split('/').all(|part| !part.is_empty())
        && !name.contains(['@', '#', '\0', '\n']);
    (!is_fine).then(|| {
        format!(
            "'{name}' is not a valid name of a dataset: use a name such as tank/home, without a slash at \
                 either end"
        )
    })
}

fn is_word(name: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=64).contains(&name.len()) && name.bytes().all(fine) && !name.starts_with('.')
}
