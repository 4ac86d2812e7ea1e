// Carries the precompiled header; see Layers.cmake.
