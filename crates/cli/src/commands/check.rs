//! `check`.

use std::io::Write;

use serde_json::{Map, Value, json};
use snowmelt_dataset::text::visible_message;
use snowmelt_pool::{CheckOptions, CheckReport, Finding, Severity};

use crate::app::App;
use crate::args::CheckArgs;
use crate::error::{CliError, Result};
use crate::exit::Exit;
use crate::output::json;
use crate::pools::Session;
use crate::report;

/// Maximum number of findings that are kept for JSON. The rest are only counted.
const KEPT_MAX: usize = 10_000;

/// Checks every invariant of pools.
///
/// # Errors
/// When a pool cannot be opened or read.
pub fn run(app: &mut App<'_>, args: &CheckArgs) -> Result<Exit> {
    let mut failed = false;
    for pool in app.own_share(&args.pools) {
        let missing = |name: &str| format!("cannot open '{name}': no such pool");
        match app.on_pool(&pool, missing, |app, session| check(app, args, &pool, session)) {
            Ok(exit) => failed |= exit != Exit::Ok,
            Err(error @ (CliError::Output(_) | CliError::Usage(_))) => return Err(error),
            Err(error) => {
                app.context.complain(error);
                failed = true;
            }
        }
    }
    Ok(Exit::unless(failed))
}

fn check(app: &mut App<'_>, args: &CheckArgs, pool: &str, session: &Session) -> Result<Exit> {
    let options = CheckOptions { data: !args.metadata_only };
    let attempt = format!("cannot check '{pool}'");
    let mut findings = Vec::new();
    let mut output = Ok(());
    let out = &mut app.context.out;
    let report = session.datasets.check(options, &mut |finding| {
        if args.json {
            if findings.len() < KEPT_MAX {
                findings.push(finding);
            }
        } else if output.is_ok() {
            let (place, what) = (visible_message(&finding.place), visible_message(&finding.what));
            output = writeln!(out, "{}: {place}: {what}", severity(&finding));
        }
    });
    let report = report.map_err(report::failed(&attempt))?;
    output?;
    if args.json {
        json::print(out, document(pool, &report, &findings))?;
    } else if !args.quiet || report.errors > 0 {
        let CheckReport { txg, trees, nodes, blocks, .. } = report;
        let errors = match report.errors {
            0 => "no errors".to_owned(),
            1 => "1 error".to_owned(),
            count => format!("{count} errors"),
        };
        writeln!(out, "{pool}: {errors} in {trees} trees, {nodes} nodes, {blocks} blocks at txg {txg}")?;
    }
    Ok(Exit::unless(report.errors > 0))
}

fn severity(finding: &Finding) -> &'static str {
    match finding.severity {
        Severity::Error => "error",
        _ => "warning",
    }
}

fn document(pool: &str, report: &CheckReport, findings: &[Finding]) -> Map<String, Value> {
    let findings: Vec<Value> = findings
        .iter()
        .map(|finding| json!({ "severity": severity(finding), "place": finding.place, "what": finding.what }))
        .collect();
    let mut document = json::document("snowmelt check");
    document.insert("pool".to_owned(), json!(pool));
    document.insert("txg".to_owned(), json!(report.txg));
    document.insert("trees".to_owned(), json!(report.trees));
    document.insert("nodes".to_owned(), json!(report.nodes));
    document.insert("blocks".to_owned(), json!(report.blocks));
    document.insert("errors".to_owned(), json!(report.errors));
    document.insert("findings".to_owned(), findings.into());
    document
}
