//! Files of a sweep: CSV (RFC 4180) and Parquet.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use serde::Serialize;

use super::rows::{Column, Values};
use crate::output::Output;

/// The file of a table or a document, before there is one.
///
/// # Errors
/// If its name has no such ending, or it cannot be written.
pub(super) fn open(file: &Path) -> Result<Output<'_>> {
    ending(file)?;
    Output::open(file)
}

/// Writes a table or a document, in the form that the file's name ends with.
pub(super) fn write(output: Output<'_>, columns: &[Column], document: &impl Serialize) -> Result<()> {
    match ending(output.path())? {
        "csv" => output.write(csv(columns).as_bytes()),
        "parquet" => output.write(&parquet(columns)?),
        _ => output.write((serde_json::to_string_pretty(document)? + "\n").as_bytes()),
    }
}

/// `csv`, `parquet` or `json`.
///
/// # Errors
/// If it is none of them, or there is no such directory: to be known before the sweep, not after it.
fn ending(file: &Path) -> Result<&str> {
    crate::picture::directory(file)?;
    let name = file.display();
    match file.extension().and_then(|e| e.to_str()) {
        Some(ending @ ("csv" | "parquet" | "json")) => Ok(ending),
        _ => bail!("{name}: its name has to end with .csv, .parquet or .json"),
    }
}

/// Numbers as short as they can be and still read back as the same.
fn csv(columns: &[Column]) -> String {
    let mut text = String::new();
    let line = |cells: Vec<String>| cells.join(",") + "\r\n";
    text += &line(columns.iter().map(|column| quoted(&column.name)).collect());
    let rows = columns.first().map_or(0, |column| column.values.len());
    for row in 0..rows {
        let cell = |column: &Column| match &column.values {
            Values::Whole(values) => values[row].to_string(),
            Values::Real(values) => values[row].map_or(String::new(), |x| x.to_string()),
            Values::Text(values) => quoted(&values[row]),
            Values::Flag(values) => values[row].map_or(String::new(), |flag| flag.to_string()),
        };
        let _ = text.write_str(&line(columns.iter().map(cell).collect()));
    }
    text
}

fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.into()
    }
}

/// One row group, not compressed.
fn parquet(columns: &[Column]) -> Result<Vec<u8>> {
    let field = |column: &Column| -> Result<Arc<Type>> {
        let (physical, repetition) = match column.values {
            Values::Whole(_) => (Physical::INT64, Repetition::REQUIRED),
            Values::Real(_) => (Physical::DOUBLE, Repetition::OPTIONAL),
            Values::Text(_) => (Physical::BYTE_ARRAY, Repetition::REQUIRED),
            Values::Flag(_) => (Physical::BOOLEAN, Repetition::OPTIONAL),
        };
        let text = matches!(column.values, Values::Text(_)).then_some(LogicalType::String);
        let builder = Type::primitive_type_builder(&column.name, physical);
        Ok(Arc::new(builder.with_repetition(repetition).with_logical_type(text).build()?))
    };
    let fields = columns.iter().map(field).collect::<Result<Vec<_>>>()?;
    let schema = Type::group_type_builder("sweep").with_fields(fields).build()?;
    let properties = WriterProperties::builder().set_created_by("corefit".into()).build();
    let mut writer = SerializedFileWriter::new(vec![], Arc::new(schema), Arc::new(properties))?;
    let mut group = writer.next_row_group()?;
    for column in columns {
        let Some(mut out) = group.next_column()? else { bail!("more columns than the schema has") };
        match &column.values {
            Values::Whole(values) => out.typed::<Int64Type>().write_batch(values, None, None)?,
            Values::Real(values) => {
                let (present, levels) = optional(values);
                out.typed::<DoubleType>().write_batch(&present, Some(&levels), None)?
            }
            Values::Text(values) => {
                let values: Vec<ByteArray> = values.iter().map(|v| ByteArray::from(v.as_str())).collect();
                out.typed::<ByteArrayType>().write_batch(&values, None, None)?
            }
            Values::Flag(values) => {
                let (present, levels) = optional(values);
                out.typed::<BoolType>().write_batch(&present, Some(&levels), None)?
            }
        };
        out.close()?;
    }
    group.close()?;
    Ok(writer.into_inner()?)
}

/// The values that there are, and for each row whether there is one.
fn optional<T: Copy>(values: &[Option<T>]) -> (Vec<T>, Vec<i16>) {
    let present = values.iter().flatten().copied().collect();
    (present, values.iter().map(|value| i16::from(value.is_some())).collect())
}

impl Values {
    fn len(&self) -> usize {
        match self {
            Values::Whole(values) => values.len(),
            Values::Real(values) => values.len(),
            Values::Text(values) => values.len(),
            Values::Flag(values) => values.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};

    use super::*;

    fn columns() -> Vec<Column> {
        let column = |name: &str, values| Column { name: name.into(), values };
        vec![
            column("point", Values::Whole(vec![0, 1])),
            column("took_s", Values::Real(vec![Some(0.1), None])),
            column("vm", Values::Text(vec!["a".into(), "b, \"c\"".into()])),
            column("finished", Values::Flag(vec![Some(true), None])),
        ]
    }

    #[test]
    fn a_csv_file_quotes_what_it_has_to_and_leaves_empty_what_is_missing() {
        let expected = "point,took_s,vm,finished\r\n0,0.1,a,true\r\n1,,\"b, \"\"c\"\"\",\r\n";
        assert_eq!(csv(&columns()), expected);
    }

    #[test]
    fn a_parquet_file_reads_back_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x.parquet");
        write(open(&file).unwrap(), &columns(), &"").unwrap();
        let reader = SerializedFileReader::new(std::fs::File::open(file).unwrap()).unwrap();
        let rows: Vec<String> = reader.get_row_iter(None).unwrap().map(|r| r.unwrap().to_string()).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0], "{point: 0, took_s: 0.1, vm: \"a\", finished: true}");
        assert_eq!(rows[1], "{point: 1, took_s: null, vm: \"b, \"c\"\", finished: null}");
    }

    #[test]
    fn a_file_of_no_known_kind_or_in_no_directory_is_refused() {
        let told = |file: &str| ending(Path::new(file)).unwrap_err().to_string();
        assert_eq!(told("x.txt"), "x.txt: its name has to end with .csv, .parquet or .json");
        assert_eq!(told("/no/such/x.csv"), "/no/such/x.csv: there is no directory /no/such");
    }
}
