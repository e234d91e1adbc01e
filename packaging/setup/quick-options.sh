# Options of the builds of ./quickstart and ./check, which halve the compiler's time: -Og for what is not computed per
# token (meson.build) and no warnings. Line numbers (-g1) cost nothing that can be measured, and tests/torture names
# functions by them. No native file: Meson would apply it again after `meson configure`.
quick_options=(-Ddebug=false -Doptimization=g -Dwarning_level=0 -Dwerror=false "-Dc_args=-w -g1")
