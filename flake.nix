{
  description = "weft: a serving daemon for large language models on one machine";
  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";
  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      each = f: nixpkgs.lib.genAttrs systems (system: f nixpkgs.legacyPackages.${system});
    in {
      packages = each (pkgs: {
        default = pkgs.stdenv.mkDerivation {
          pname = "weft";
          version = "0.2.0";
          src = self;
          nativeBuildInputs = with pkgs; [ meson ninja pkg-config python3 ];
          # The build turns all features on that are "auto": curl, KV events, probes, systemd and TLS.
          buildInputs = with pkgs; [
            libuv llhttp yyjson jemalloc xxHash utf8proc pcre2 libpng libjpeg libwebp giflib sqlite zlib zstd curl openssl ncurses libedit systemd zeromq libsystemtap
          ];
          postPatch = "patchShebangs web docs/man"; # scripts of the build: the sandbox has no /usr/bin/env
          # The build's own optimisation holds; units and groups belong to the package, the configuration to the system.
          hardeningDisable = [ "fortify" ];
          mesonBuildType = "debugoptimized";
          mesonFlags = [
            "-Dwerror=false" "-Dtests=false" "-Dcuda=disabled" "-Dsysconfdir=${placeholder "out"}/etc"
          ];
          # weftd opens libzmq and libcurl when an option asks for them, and is not linked with them.
          postFixup = "patchelf --add-rpath ${pkgs.lib.makeLibraryPath [ pkgs.zeromq pkgs.curl ]} $out/bin/weftd";
          PKG_CONFIG_SYSTEMD_SYSTEMDSYSTEMUNITDIR = "${placeholder "out"}/lib/systemd/system";
          PKG_CONFIG_SYSTEMD_SYSUSERSDIR = "${placeholder "out"}/lib/sysusers.d";
          meta.license = pkgs.lib.licenses.asl20;
          meta.mainProgram = "weftd";
        };
      });

      nixosModules.default = { config, lib, pkgs, ... }:
        let
          cfg = config.services.weft;
          file = pkgs.writeText "weft.conf" (lib.generators.toINI { } cfg.settings);
        in {
          options.services.weft = {
            enable = lib.mkEnableOption "weftd";
            package = lib.mkOption {
              type = lib.types.package;
              default = self.packages.${pkgs.stdenv.hostPlatform.system}.default;
            };
            settings = lib.mkOption {
              type = with lib.types; attrsOf (attrsOf (oneOf [ bool int float str ]));
              default = { };
              example = { model.model = "/srv/models/MODEL.gguf"; };
              description = "Sections and keys of weft.conf(5).";
            };
          };
          config = lib.mkIf cfg.enable {
            environment.systemPackages = [ cfg.package ];
            users.groups.weft = { };
            users.groups.weft-admin = { };
            systemd.packages = [ cfg.package ];
            systemd.sockets.weftd.wantedBy = [ "sockets.target" ];
            systemd.sockets.weftd-admin.wantedBy = [ "sockets.target" ];
            systemd.services.weftd = {
              wantedBy = [ "multi-user.target" ];
              serviceConfig.ExecStart = [ "" "${cfg.package}/bin/weftd --config ${file}" ];
            };
          };
        };
    };
}
