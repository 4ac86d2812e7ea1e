// Pictures with captions, encoded by FLUX's frozen encoders: by `prepare flux`, or when a run begins whose data paths
// name the pictures themselves.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "data/flux_prepare.h"
#include "train/config.h"
#include "train/flux_encoders.h"

namespace megalith {

// prepare_flux() with these encoders, which are opened for it. UserErrors of both.
FluxPrepareReport encode_pictures(const FluxPrepareOptions& pictures, const FluxEncoderOptions& encoders,
                                  PictureSource& source, Logger& log);

// Whether a data path names pictures (data/picture_source.h), and not a folder of `prepare flux`.
bool names_pictures(const std::string& value);

// Whether any data path of a model of pictures does.
bool has_unencoded_pictures(const Resolved& resolved);

// What is wrong with such paths, before anything is read or allocated.
std::vector<UserError> check_unencoded_pictures(const Resolved& resolved);

// Puts prepared folders in the place of data paths that name pictures; several of one option become one. They lie in
// data_cache_path, or beside the first of the pictures in {path}.encoded, under a name that follows from the pictures'
// names, sizes and times, from the encoders' paths, and from image_size, text_length and vae_latent_mode: so they are
// made once, by one process of those that start together, while the others wait. Derived::encoders is read.
void prepare_pictures(Resolved& resolved, Logger& log);

}  // namespace megalith
