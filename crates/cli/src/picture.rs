//! Pictures in files: SVG as it is drawn, PNG made of it.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::{Database, Style};
use resvg::usvg::{Options, Tree};

use crate::output::Output;

/// Pixels of a PNG for each of the SVG, in each direction.
const SCALE: f32 = 2.0;

/// Whether a picture can be written there, as far as that is known before it is drawn.
///
/// # Errors
/// If the name has another ending than .svg and .png, there is no such directory, or no font for a PNG.
pub(crate) fn check(file: &Path) -> Result<()> {
    let name = file.display();
    directory(file)?;
    match file.extension().and_then(|e| e.to_str()) {
        Some("svg") => Ok(()),
        Some("png") => fonts().map(|_| ()).with_context(|| name.to_string()),
        _ => bail!("{name}: its name has to end with .svg or .png"),
    }
}

/// The directory of a file that is to be written is there.
pub(crate) fn directory(file: &Path) -> Result<()> {
    let directory = file.parent().filter(|d| !d.as_os_str().is_empty());
    match directory.filter(|d| !d.is_dir()) {
        Some(missing) => bail!("{}: there is no directory {}", file.display(), missing.display()),
        None => Ok(()),
    }
}

/// The file of a picture that is drawn later.
///
/// # Errors
/// As [`check`]; if it cannot be written.
pub(crate) fn open(file: &Path) -> Result<Output<'_>> {
    check(file)?;
    Output::open(file)
}

/// Writes a picture, as the file's name says.
///
/// # Errors
/// If it cannot be drawn or written.
pub(crate) fn write(output: Output<'_>, svg: &str) -> Result<()> {
    let png = output.path().extension().is_some_and(|e| e == "png");
    if png { output.write(&png_of(svg)?) } else { output.write(svg.as_bytes()) }
}

fn png_of(svg: &str) -> Result<Vec<u8>> {
    let options = Options { fontdb: std::sync::Arc::new(fonts()?), ..Options::default() };
    let tree = Tree::from_str(svg, &options).context("cannot draw")?;
    let size = tree.size().to_int_size().scale_by(SCALE).ok_or_else(|| anyhow!("cannot draw: no size"))?;
    let mut pixels =
        Pixmap::new(size.width(), size.height()).ok_or_else(|| anyhow!("cannot draw: no size"))?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixels.as_mut());
    pixels.encode_png().context("cannot encode")
}

/// The fonts of the system, with one of them for text of no particular font.
fn fonts() -> Result<Database> {
    let mut fonts = Database::new();
    fonts.load_system_fonts();
    let plain = |wanted: &str| {
        let mut faces = fonts.faces().filter(|f| f.style == Style::Normal && !f.monospaced);
        faces
            .find_map(|f| f.families.iter().map(|(name, _)| name).find(|name| name.contains(wanted)).cloned())
    };
    let family = ["DejaVu Sans", "Sans", ""].into_iter().find_map(plain);
    ensure!(
        family.is_some(),
        "a PNG needs a font, and there is none; install fonts-dejavu-core, or write .svg"
    );
    fonts.set_sans_serif_family(family.unwrap_or_default());
    Ok(fonts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_png_has_what_the_svg_draws_in_twice_the_size() {
        let svg = "<svg xmlns='http://www.w3.org/2000/svg' width='20' height='10'>\
                   <rect width='20' height='10' fill='#f00'/></svg>";
        if let Err(error) = fonts() {
            println!("not tested: {error}");
            return;
        }
        let picture = Pixmap::decode_png(&png_of(svg).unwrap()).unwrap();
        assert_eq!((picture.width(), picture.height()), (40, 20));
        let middle = picture.pixel(20, 10).unwrap();
        assert_eq!((middle.red(), middle.green(), middle.alpha()), (255, 0, 255));
    }

    #[test]
    fn other_endings_and_missing_directories_are_refused() {
        let told = |file: &str| check(Path::new(file)).unwrap_err().to_string();
        assert_eq!(told("a.jpg"), "a.jpg: its name has to end with .svg or .png");
        assert_eq!(told("nosuch/a.svg"), "nosuch/a.svg: there is no directory nosuch");
    }
}
