// Encodes pictures with captions by FLUX's frozen encoders: for `prepare flux`, or at the start of a run whose data
// paths name pictures.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "kinds/flow/flux_encoders.h"
#include "kinds/flow/flux_prepare.h"
#include "train/config.h"

namespace megalith {

// prepare_flux() with these encoders. UserErrors of both.
FluxPrepareReport encode_pictures(const FluxPrepareOptions& pictures, const FluxEncoderOptions& encoders,
                                  PictureSource& source, Logger& log);

// True if a data path names pictures (picture_source.h), not a folder of `prepare flux`.
bool names_pictures(const std::string& value);

bool has_unencoded_pictures(const Resolved& resolved);

// Errors of such paths, before anything is read or allocated.
std::vector<UserError> check_unencoded_pictures(const Resolved& resolved);

// Replaces data paths that name pictures by prepared folders, one per option, in data_cache_path or {path}.encoded of
// the first pictures. Names derive from the pictures' names, sizes and times, the encoders' paths, image_size,
// text_length and vae_latent_mode; one process makes the folders once while the others wait. Reads Derived::encoders.
void prepare_pictures(Resolved& resolved, Logger& log);

}  // namespace megalith
