// How a camera was held: the orientation that EXIF gives a picture, and the picture turned by it.
//
// Orientations are numbered 1 to 8 as TIFF 6.0 has them: which sides the first row and the first column of what is
// stored are. Only this tag is read (0x0112 of the first directory); a file without it, or with data that make no
// sense, is upright, as Pillow has it.
#pragma once

#include "image/picture.h"

namespace megalith {

int jpeg_orientation(std::span<const char> bytes);  // of the segment APP1
int png_orientation(std::span<const char> bytes);   // of the chunk eXIf
int webp_orientation(std::span<const char> bytes);  // of the chunk EXIF

// The one in TIFF data: what lies behind "Exif\0\0".
int tiff_orientation(std::span<const char> tiff);

Picture turned_upright(Picture picture, int orientation);

}  // namespace megalith
