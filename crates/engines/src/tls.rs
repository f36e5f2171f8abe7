//! TLS towards engines.
//!
//! Trust comes from the system's certificate store, from extra authorities that the user names, or, with the
//! switch that says so, from nobody. A broken system store is no error as long as nothing needs it: engines
//! are mostly reached over plain HTTP.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Trust and identity towards engines. All texts are PEM.
#[derive(Clone, Default)]
pub struct TlsConfig {
    /// Certificates of authorities to trust besides the system's.
    pub extra_ca_pem: Option<Vec<u8>>,
    /// Do not trust the system's authorities.
    pub without_system_roots: bool,
    /// Certificate chain and private key to show to engines that ask for one.
    pub client_identity_pem: Option<ClientIdentity>,
    /// Accept any certificate. Encrypts, but does not tell who is at the other end.
    pub insecure_skip_verify: bool,
}

impl std::fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsConfig")
            .field("extra_ca", &self.extra_ca_pem.is_some())
            .field("without_system_roots", &self.without_system_roots)
            .field("client_identity", &self.client_identity_pem.is_some())
            .field("insecure_skip_verify", &self.insecure_skip_verify)
            .finish()
    }
}

/// A client certificate with its key.
#[derive(Clone)]
pub struct ClientIdentity {
    /// Certificate chain, PEM.
    pub cert_pem: Vec<u8>,
    /// Private key, PEM.
    pub key_pem: Vec<u8>,
}

/// Why a TLS configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The extra authorities do not parse.
    #[error("the extra ca file has no usable pem certificate: {0}")]
    ExtraCa(String),
    /// The client certificate or key does not parse or they do not fit.
    #[error("the client certificate and key cannot be used: {0}")]
    ClientIdentity(String),
    /// The TLS library refuses its settings.
    #[error("tls cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certs: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certs {
        Ok(certs) if certs.is_empty() => Err("no certificate in it".to_owned()),
        Ok(certs) => Ok(certs),
        Err(e) => Err(e.to_string()),
    }
}

fn roots(config: &TlsConfig) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    if !config.without_system_roots {
        let system = rustls_native_certs::load_native_certs();
        for error in &system.errors {
            tracing::warn!(%error, "a system certificate store cannot be read");
        }
        let (_, unusable) = roots.add_parsable_certificates(system.certs);
        if unusable > 0 {
            tracing::debug!(unusable, "system certificates that do not parse are ignored");
        }
    }
    if let Some(pem) = &config.extra_ca_pem {
        for cert in certificates(pem).map_err(TlsError::ExtraCa)? {
            roots.add(cert).map_err(|e| TlsError::ExtraCa(e.to_string()))?;
        }
    }
    Ok(roots)
}

pub(crate) fn client_config(config: &TlsConfig) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let builder = if config.insecure_skip_verify {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
    } else {
        builder.with_root_certificates(roots(config)?)
    };
    let Some(identity) = &config.client_identity_pem else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(&identity.cert_pem).map_err(TlsError::ClientIdentity)?;
    let key = PrivateKeyDer::from_pem_slice(&identity.key_pem)
        .map_err(|e| TlsError::ClientIdentity(e.to_string()))?;
    builder.with_client_auth_cert(chain, key).map_err(|e| TlsError::ClientIdentity(e.to_string()))
}

/// Accepts any certificate, but still checks that the peer holds its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
