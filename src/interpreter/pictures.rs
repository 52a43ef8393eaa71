//! The pictures that code drew, small enough for a model.

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::{DynamicImage, ImageFormat, ImageReader, Limits};
use tokio::sync::Semaphore;

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
/// Memory that decoding one may take.
const MAX_MEMORY: u64 = 96 << 20;
/// Pictures that are told of one by one.
const MAX_NOTES: usize = 16;

/// Pictures that are decoded at once, of all runs.
static DECODING: Semaphore = Semaphore::const_new(2);

/// The pictures to show, and a line of text for each one that there is.
pub(super) async fn of(execution: &Execution, vision: bool) -> (Vec<Image>, Vec<String>) {
    let drawn: Vec<(&'static str, String)> = drawn(execution);
    if drawn.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let Ok(_permit) = DECODING.acquire().await else { return (Vec::new(), Vec::new()) };
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
    let mut tried = 0;
    for (number, (mime, base64)) in drawn.iter().enumerate().take(MAX_NOTES) {
        let name = format!("image {} ({mime}", number + 1);
        let Ok(picture) = Picture::read(mime, base64) else {
            notes.push(format!("{name}): not shown, it is no picture"));
            continue;
        };
        let name = format!("{name}, {}x{})", picture.width, picture.height);
        // each trial costs memory and time, also one that fails
        let told = if !vision {
            "not shown, you read no images".to_owned()
        } else if tried >= MAX_IMAGES {
            format!("not shown, only {MAX_IMAGES} are")
        } else {
            tried += 1;
            match picture.shown(base64) {
                Some(image) => {
                    images.push(image);
                    "shown".to_owned()
                }
                None => "not shown, it is too large or broken".to_owned(),
            }
        };
        notes.push(format!("{name}: {told}"));
    }
    if drawn.len() > MAX_NOTES {
        notes.push(format!("and {} more images, not shown", drawn.len() - MAX_NOTES));
    }
    (images, notes)
}

/// A picture of which only the head was read.
struct Picture {
    bytes: Vec<u8>,
    mime: &'static str,
    format: ImageFormat,
    width: u32,
    height: u32,
}

/// What is called a picture is none.
struct NoPicture;

impl Picture {
    fn read(mime: &'static str, base64: &str) -> Result<Self, NoPicture> {
        if base64.len() > MAX_BASE64 {
            return Err(NoPicture);
        }
        let bytes = STANDARD.decode(base64).map_err(|_| NoPicture)?;
        let format = ImageFormat::from_mime_type(mime).ok_or(NoPicture)?;
        let sized = ImageReader::with_format(Cursor::new(&bytes), format);
        let (width, height) = sized.into_dimensions().map_err(|_| NoPicture)?;
        Ok(Self { bytes, mime, format, width, height })
    }

    /// The picture as it is shown: decoded, since services refuse a message with a broken one.
    fn shown(&self, base64: &str) -> Option<Image> {
        let mut reader = ImageReader::with_format(Cursor::new(&self.bytes), self.format);
        let mut limits = Limits::default();
        limits.max_image_width = Some(MAX_DECODED_EDGE);
        limits.max_image_height = Some(MAX_DECODED_EDGE);
        limits.max_alloc = Some(MAX_MEMORY);
        reader.limits(limits);
        let picture = reader.decode().ok()?;
        if self.width.max(self.height) <= MAX_EDGE && self.bytes.len() <= MAX_BYTES {
            return Some(Image { mime: self.mime.to_owned(), base64: base64.to_owned() });
        }
        smaller(&picture)
    }
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
        let (kind, whole) = png(50, 60);
        let half = STANDARD.encode(&STANDARD.decode(&whole).expect("base64")[..60]);
        let drawn = [
            (kind, half),
            ("image/png", "bm90IGE=".to_owned()),
            ("image/jpeg", "!".to_owned()),
            png(9000, 2),
        ];
        let (images, notes) = all(&drawn, true);
        assert!(images.is_empty());
        assert_eq!(
            notes,
            [
                "image 1 (image/png, 50x60): not shown, it is too large or broken",
                "image 2 (image/png): not shown, it is no picture",
                "image 3 (image/jpeg): not shown, it is no picture",
                "image 4 (image/png, 9000x2): not shown, it is too large or broken",
            ]
        );
        let (images, notes) = all(&[(kind, whole)], false);
        assert_eq!(
            (images.len(), notes[0].as_str()),
            (0, "image 1 (image/png, 50x60): not shown, you read no images")
        );
    }

    #[test]
    fn many_pictures_are_told_in_short() {
        let drawn = vec![png(1, 1); 1000];
        let (images, notes) = all(&drawn, true);
        assert_eq!((images.len(), notes.len()), (MAX_IMAGES, MAX_NOTES + 1));
        assert_eq!(notes[MAX_NOTES], "and 984 more images, not shown");
    }
}
