//! Computes the rules of each existing dataset.

use std::collections::BTreeMap;

use super::rules::Rules;
use super::settings::{Recursion, Settings};
use super::{Config, Section};
use crate::state::{State, is_below, pool_of};

/// Rules by dataset.
pub type Effective = BTreeMap<String, Rules>;

/// The settings of a dataset while its rules are computed.
#[derive(Clone)]
struct Begun {
    settings: Settings,
    follows: Option<String>,
}

impl Config {
    /// The rules of each of these datasets that a section applies to. Sections apply in their order, each on top of
    /// earlier ones. A recursive section replaces the settings of the datasets below it by its own (`init` of sanoid).
    pub fn rules<'a>(&self, datasets: impl IntoIterator<Item = &'a str>) -> Effective {
        let datasets: Vec<&str> = datasets.into_iter().collect();
        let mut begun: BTreeMap<&str, Begun> = BTreeMap::new();
        for section in &self.sections {
            let Some(name) = datasets.iter().copied().find(|name| *name == section.dataset) else { continue };
            let own =
                begun.entry(name).or_insert_with(|| Begun { settings: self.defaults.clone(), follows: None });
            own.settings.lay(&section.settings);
            let own = own.clone();
            for below in datasets.iter().copied().filter(|below| is_below(below, name)) {
                match (section.skips_children, section.recursion) {
                    (true, _) => drop(begun.remove(below)),
                    (false, Recursion::None) => {}
                    (false, recursion) => {
                        let mut child = own.clone();
                        // This setting excludes only the section's own dataset.
                        child.settings.process_children_only = None;
                        child.follows = match recursion {
                            Recursion::Together => {
                                Some(own.follows.clone().unwrap_or_else(|| name.to_owned()))
                            }
                            _ => own.follows.clone(),
                        };
                        begun.insert(below, child);
                    }
                }
            }
        }
        begun
            .into_iter()
            .map(|(name, begun)| (name.to_owned(), Rules::new(&begun.settings, begun.follows)))
            .collect()
    }

    /// Datasets that do not exist although a section that Nagios monitors is for them.
    pub fn absent<'a>(&'a self, state: &State) -> Vec<&'a str> {
        let sections = self.sections.iter().filter(|section| state.dataset(&section.dataset).is_none());
        let watched = sections.filter(|section| {
            let mut settings = self.defaults.clone();
            settings.lay(&section.settings);
            Rules::new(&settings, None).monitor.enabled
        });
        watched.map(|section| section.dataset.as_str()).collect()
    }

    /// Sections whose dataset does not exist although its pool does. Datasets that a job replicates to this machine are
    /// left out.
    pub fn missing<'a>(&'a self, state: &'a State) -> impl Iterator<Item = &'a Section> {
        let is_brought = |name: &str| state.jobs.values().any(|job| job.target.names("", name));
        self.sections.iter().filter(move |section| {
            let name = section.dataset.as_str();
            state.dataset(name).is_none() && state.pools.contains_key(pool_of(name)) && !is_brought(name)
        })
    }

    /// The datasets whose state is needed. Each is returned with whether the datasets below it are needed too. None of
    /// them is below another one.
    pub fn roots(&self) -> Vec<(&str, bool)> {
        let mut roots: Vec<(&str, bool)> = Vec::new();
        let mut sections: Vec<&Section> = self.sections.iter().collect();
        sections.sort_by(|a, b| a.dataset.cmp(&b.dataset));
        for section in sections {
            let recursive = section.recursion != Recursion::None;
            let above = roots
                .iter_mut()
                .find(|(root, _)| *root == section.dataset || is_below(&section.dataset, root));
            match above {
                Some((root, reaches)) => *reaches |= recursive || *root != section.dataset,
                None => roots.push((&section.dataset, recursive)),
            }
        }
        roots
    }

    /// The pools of all sections, with their monitoring rules. The rules come from the section of the pool itself, or
    /// from the first section in the pool.
    pub fn pools(&self) -> BTreeMap<&str, super::Monitor> {
        let mut pools = BTreeMap::new();
        for section in &self.sections {
            let pool = pool_of(&section.dataset);
            let mut settings = self.defaults.clone();
            settings.lay(&section.settings);
            let monitor = Rules::new(&settings, None).monitor;
            if section.dataset == pool {
                pools.insert(pool, monitor);
            } else {
                pools.entry(pool).or_insert(monitor);
            }
        }
        pools
    }
}
