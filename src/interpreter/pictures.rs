//! The pictures that code drew, for a model that reads them: few, small, and real.

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::{DynamicImage, ImageFormat, ImageReader, Limits};

use crate::domain::execution::Execution;
use crate::llm::conversation::Image;

/// Pictures of one execution that are shown.
const MAX_IMAGES: usize = 4;
/// The longest edge, in pixels; models make larger ones smaller themselves.
const MAX_EDGE: u32 = 1568;
/// The largest picture, in bytes.
const MAX_BYTES: usize = 3_750_000;
/// The largest picture that is looked at.
const MAX_BASE64: usize = 16 << 20;
/// The longest edge that is looked at, in pixels.
const MAX_DECODED_EDGE: u32 = 8192;
/// Memory that decoding may take.
const MAX_MEMORY: u64 = 256 << 20;

/// The pictures to show, and a line of text for each one that there is.
pub(super) async fn of(execution: &Execution, vision: bool) -> (Vec<Image>, Vec<String>) {
    let drawn: Vec<(&'static str, String)> = drawn(execution);
    if drawn.is_empty() {
        return (Vec::new(), Vec::new());
    }
    // decoding takes milliseconds, and what is decoded is hostile
    let work = tokio::task::spawn_blocking(move || all(&drawn, vision));
    work.await.unwrap_or_default()
}

fn drawn(execution: &Execution) -> Vec<(&'static str, String)> {
    let picture = |output: &crate::domain::execution::Output| {
        ["image/png", "image/jpeg"].into_iter().find_map(|mime| {
            let base64 = output.data.get(mime)?.as_str()?;
            Some((mime, base64.split_ascii_whitespace().collect::<String>()))
        })
    };
    execution.outputs.iter().filter_map(picture).collect()
}

fn all(drawn: &[(&'static str, String)], vision: bool) -> (Vec<Image>, Vec<String>) {
    let (mut images, mut notes) = (Vec::new(), Vec::new());
    for (number, (mime, base64)) in drawn.iter().enumerate() {
        let name = format!("image {} ({mime}", number + 1);
        let note = match shown(mime, base64) {
            Ok((_, width, height)) if !vision => {
                format!("{name}, {width}x{height}): not shown, you read no images")
            }
            Ok((_, width, height)) if images.len() >= MAX_IMAGES => {
                format!("{name}, {width}x{height}): not shown, only {MAX_IMAGES} are")
            }
            Ok((image, width, height)) => {
                images.push(image);
                format!("{name}, {width}x{height}): shown")
            }
            Err(why) => format!("{name}): not shown, {why}"),
        };
        notes.push(note);
    }
    (images, notes)
}

/// The picture as it is shown, with the size that it was drawn in.
fn shown(mime: &str, base64: &str) -> Result<(Image, u32, u32), &'static str> {
    if base64.len() > MAX_BASE64 {
        return Err("it is too large");
    }
    let bytes = STANDARD.decode(base64).map_err(|_| "it is no picture")?;
    let format = ImageFormat::from_mime_type(mime).ok_or("it is no picture")?;
    let sized = ImageReader::with_format(Cursor::new(&bytes), format);
    let (width, height) = sized.into_dimensions().map_err(|_| "it is no picture")?;
    if width.max(height) <= MAX_EDGE && bytes.len() <= MAX_BYTES {
        let image = Image { mime: mime.to_owned(), base64: base64.to_owned() };
        return Ok((image, width, height));
    }
    let mut reader = ImageReader::with_format(Cursor::new(&bytes), format);
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_DECODED_EDGE);
    limits.max_image_height = Some(MAX_DECODED_EDGE);
    limits.max_alloc = Some(MAX_MEMORY);
    reader.limits(limits);
    let picture = reader.decode().map_err(|_| "it is too large")?;
    let image = smaller(&picture).ok_or("it is too large")?;
    Ok((image, width, height))
}

/// As PNG where that is small enough, since charts are sharp; else as JPEG.
fn smaller(picture: &DynamicImage) -> Option<Image> {
    let small = picture.thumbnail(MAX_EDGE, MAX_EDGE);
    let png = encoded(&small, ImageFormat::Png, "image/png");
    png.or_else(|| encoded(&small.to_rgb8().into(), ImageFormat::Jpeg, "image/jpeg"))
}

fn encoded(picture: &DynamicImage, format: ImageFormat, mime: &str) -> Option<Image> {
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, format).ok()?;
    let bytes = bytes.into_inner();
    (bytes.len() <= MAX_BYTES)
        .then(|| Image { mime: mime.to_owned(), base64: STANDARD.encode(bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(width: u32, height: u32) -> (&'static str, String) {
        let picture = DynamicImage::new_rgb8(width, height);
        let mut bytes = Cursor::new(Vec::new());
        picture.write_to(&mut bytes, ImageFormat::Png).expect("encoded");
        ("image/png", STANDARD.encode(bytes.into_inner()))
    }

    fn size(image: &Image) -> (u32, u32) {
        let bytes = STANDARD.decode(&image.base64).expect("base64");
        let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().expect("read");
        reader.into_dimensions().expect("a picture")
    }

    #[test]
    fn pictures_are_few_and_small() {
        let drawn = [png(640, 480), png(4000, 1000), png(1, 1), png(2, 2), png(3, 3)];
        let (images, notes) = all(&drawn, true);
        assert_eq!(images.len(), MAX_IMAGES);
        assert_eq!((size(&images[0]), size(&images[1])), ((640, 480), (1568, 392)));
        assert_eq!(notes[1], "image 2 (image/png, 4000x1000): shown");
        assert_eq!(notes[4], "image 5 (image/png, 3x3): not shown, only 4 are");
        assert_eq!(images[0].base64, drawn[0].1, "a small one stays as it is");
    }

    #[test]
    fn what_cannot_be_shown_is_told() {
        let drawn = [
            png(5, 6),
            ("image/png", "bm90IGE=".to_owned()),
            ("image/jpeg", "!".to_owned()),
            png(9000, 2),
        ];
        let (images, notes) = all(&drawn, false);
        assert!(images.is_empty());
        assert_eq!(
            notes,
            [
                "image 1 (image/png, 5x6): not shown, you read no images",
                "image 2 (image/png): not shown, it is no picture",
                "image 3 (image/jpeg): not shown, it is no picture",
                "image 4 (image/png): not shown, it is too large",
            ]
        );
    }
}
