#pragma once

// The vector types that CUDA predefines, with their alignments, and the functions that make them.

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
};

#define EMULATED_VECTORS(name, type)                                  \
  struct alignas(2 * sizeof(type)) name##2 {                          \
    type x, y;                                                        \
  };                                                                  \
  struct alignas(sizeof(type) < 8 ? 4 * sizeof(type) : 16) name##4 {  \
    type x, y, z, w;                                                  \
  };                                                                  \
  constexpr name##2 make_##name##2(type x, type y) { return {x, y}; } \
  constexpr name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

EMULATED_VECTORS(char, signed char)
EMULATED_VECTORS(uchar, unsigned char)
EMULATED_VECTORS(short, short)
EMULATED_VECTORS(ushort, unsigned short)
EMULATED_VECTORS(int, int)
EMULATED_VECTORS(uint, unsigned)
EMULATED_VECTORS(longlong, long long)
EMULATED_VECTORS(ulonglong, unsigned long long)
EMULATED_VECTORS(float, float)
EMULATED_VECTORS(double, double)
#undef EMULATED_VECTORS

constexpr uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

struct float3 {
  float x, y, z;
};
constexpr float3 make_float3(float x, float y, float z) { return {x, y, z}; }
