//! Tests of the wire formats with recordings of real servers, scenarios and damaged data.

mod conformance;
mod damage;
mod dialects;
mod encode;
mod fixtures;
mod media;
mod properties;
mod recordings;
mod reference;
mod replay;
mod requests;
mod scenarios;
mod support;
