use super::Failed; use super::figure::Settings; use super::machine::Machine; use super::results::Store; use miette::Report;
pub(super) fn write(_s:&Store,_t:&Settings,_m:&Machine,_f:&[Failed])->Result<String,Report>{Ok(String::new())}
