// EXIF orientations 1 to 8, as in TIFF 6.0: the sides of the first stored row and column. Only tag 0x0112 of the first
// directory is read; without sensible data a picture is upright, as in Pillow.
#pragma once

#include "image/picture.h"

namespace megalith {

int jpeg_orientation(std::span<const char> bytes);  // segment APP1
int png_orientation(std::span<const char> bytes);   // chunk eXIf
int webp_orientation(std::span<const char> bytes);  // chunk EXIF

// TIFF data, after "Exif\0\0".
int tiff_orientation(std::span<const char> tiff);

Picture turned_upright(Picture picture, int orientation);

}  // namespace megalith
